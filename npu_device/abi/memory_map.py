"""Memory map (docs/interface.md, "Memory map"): defaults of the configuration, and the boot information."""

import struct
from typing import NamedTuple

from npu_device.abi.errors import check_spans


class MapEntry(NamedTuple):
    name: str
    base: int
    size: int
    text: str


ROM_BASE = 0x0000_1000
FINISHER_BASE = 0x0010_0000
CLINT_BASE = 0x0200_0000
PLIC_BASE = 0x0C00_0000
UART_BASE = 0x1000_0000
UART1_BASE = 0x1000_1000
NPU_BASE = 0x4000_0000
NPU_WINDOW = 0x1_0000
SPM_BASE = 0x5000_0000
SPM_CLUSTER_STRIDE = 0x0400_0000
SPM_SIZE = 2 << 20
SPM_MAX_SIZE = 64 << 20
MAX_CLUSTERS = 12
DRAM_BASE = 0x8000_0000
DRAM_SIZE = 128 << 20
DRAM_CORE_VISIBLE = 2 << 30
KV_BASE = 1 << 44
"""Base of the virtual addresses of encoded keys and values (docs/oaken.md, "Pages")."""
KV_RANGE = 3
"""Size of this range in multiples of DRAM: an element has at least 4.1 bits of pages, at most 12.3 of addresses."""

UART1_SOURCE = 9
"""PLIC source of the second UART, which `platform.serial` adds."""
UART_SOURCE = 10
NPU_SOURCE = 11

MEMORY_MAP = (
    MapEntry("ROM", ROM_BASE, 0x1000, "a jump to the ELF entry, and npu_bootinfo"),
    MapEntry("FINISHER", FINISHER_BASE, 0x1000, "0x5555 exit 0, (code<<16)|0x3333 exit code, 0x7777 reset"),
    MapEntry("CLINT", CLINT_BASE, 0x1_0000, "msip +0, mtimecmp +0x4000, mtime +0xBFF8"),
    MapEntry("PLIC", PLIC_BASE, 0x40_0000, "priority, pending, enable, threshold, claim/complete"),
    MapEntry("UART", UART_BASE, 0x100, f"16550, byte registers, PLIC source {UART_SOURCE}"),
    MapEntry("NPU", NPU_BASE, NPU_WINDOW, f"NPU registers, PLIC source {NPU_SOURCE}; --mmio-base moves them"),
    MapEntry("SPM", SPM_BASE, SPM_SIZE, f"scratchpad; cluster c at + c * {SPM_CLUSTER_STRIDE:#x}"),
    MapEntry("DRAM", DRAM_BASE, DRAM_SIZE, "linear through and beyond 4 GiB; the core sees at most 2 GiB"),
)

BOOTINFO_MAGIC = 0x4255_504E  # "NPUB"
BOOTINFO_ARGS = 16
BOOTINFO_FIELDS = ("magic", "version", "mmio_base", "spm_base", "spm_size", "dram_size", "queue_size", "clock_hz")

NOTE_OWNER = "PyVNPU"
NOTE_SECTION = ".note.pyvnpu"
NOTE_REQUIREMENTS = 1
"""Type of a note with desc: u32 ABI version, u32 opcode slot, u32 DRAM bytes needed, u32 SPM bytes needed (0: any)."""
NOTE_ARGUMENT = 2
"""Type of a note with desc: u32 index into npu_bootinfo.args, u32 default, then the zero-terminated name."""
NOTE_FILE = 3
"""Type of a note with desc: u64 offset from the base of DRAM, u64 bytes, SHA-256 of the content, then the
zero-terminated name of the sidecar file to load there."""
NOTE_NOISE = 4
"""Type of a note with desc: zero-terminated output of the program with numbers that are not results, such as times,
each written as #."""

NOTE_RANGE = 5
"""Type of a note with desc: u32 minimum and u32 maximum of an argument, then its zero-terminated name."""


def pack_bootinfo(values: dict[str, int], args: list[int]) -> bytes:
    """Return `npu_bootinfo`: the words of BOOTINFO_FIELDS, then args[16]."""
    words = [values[name] for name in BOOTINFO_FIELDS] + args + [0] * (BOOTINFO_ARGS - len(args))
    return struct.pack(f"<{len(words)}I", *(word & 0xFFFF_FFFF for word in words))


def check_map(entries: tuple[MapEntry, ...]) -> None:
    """Raise AbiError for overlapping ranges and duplicate names."""
    ranges = sorted((entry[:3] for entry in entries), key=lambda span: span[1])
    check_spans("memory range", ranges, 0, 1 << 64, gaps=True)


check_map(MEMORY_MAP)
