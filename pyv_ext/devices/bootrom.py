"""The boot ROM: a jump to the program, and the information block that the platform hands to firmware."""

from pyv_ext.memory import PAGE, Ram

INFO_OFFSET = 0x20
"""Where the boot information lies in the ROM; at the program's entry a1 holds its address."""

T0, A0, A1 = 5, 10, 11
MHARTID = 0xF14


def boot_rom(base: int, entry: int, info: bytes) -> Ram:
    """A ROM at `base` whose code sets a0 = hart id and a1 = address of `info`, and jumps to `entry`."""
    high = (entry + 0x800) & 0xFFFF_F000  # jalr's offset is signed
    code = (
        _auipc(A1, 0),
        _addi(A1, A1, INFO_OFFSET),
        _csrr(A0, MHARTID),
        _lui(T0, high),
        _jr(T0, entry - high),
    )
    image = b"".join(word.to_bytes(4, "little") for word in code).ljust(INFO_OFFSET, b"\0") + info
    rom = Ram("rom", base, -(-len(image) // PAGE) * PAGE, writable=False)
    rom.u8[: len(image)] = image
    return rom


def _lui(rd: int, high: int) -> int:
    return high | rd << 7 | 0x37


def _auipc(rd: int, high: int) -> int:
    return high | rd << 7 | 0x17


def _addi(rd: int, rs1: int, imm: int) -> int:
    return (imm & 0xFFF) << 20 | rs1 << 15 | rd << 7 | 0x13


def _csrr(rd: int, csr: int) -> int:
    return csr << 20 | 2 << 12 | rd << 7 | 0x73


def _jr(rs1: int, imm: int) -> int:
    return (imm & 0xFFF) << 20 | rs1 << 15 | 0x67
