"""A program that has no submit symbols and does not use the NPU runs at one speed, whatever its bits look like."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import guest
import pytest
from external_tools import GCC, PICOLIBC, needs
from guest import ENCODE, RAM, li
from shares import slow
from work_count import calls

from npu_device.abi import instructions
from npu_device.abi.memory_map import NPU_BASE
from npu_device.abi.registers import REGISTERS
from pyv_ext import elf
from pyv_ext.elf import Program
from pyv_ext.engines.core import Stop
from pyv_ext.machine.state import LogKind
from pyv_ext.protocols import CustomInstruction, Operands
from pyv_npu.config import load
from pyv_npu.platform import Platform
from toolchain.gnu import HEADERS, LIBRARY_FLAGS, LINKER_SCRIPT, RUNTIME_SOURCES, firmware_folder

DESCRIPTOR = RAM + 0x1_0000
MATCH = {encoding.isa_name: instructions.match_mask(encoding, 0)[0] for encoding in instructions.CUSTOM_INSTRUCTIONS}
CTRL = next(register.offset for register in REGISTERS if register.name == "CTRL")
OWN = CustomInstruction("own", 0x5C00_002B, 0xFE00_707F, "rd,rs1,rs2", lambda operands: operands.rs1 + 1)


def looping(turns: int, *after: int, data: bool = True) -> Program:
    """Counts down, then does `after`; with `data`, bit patterns of all custom instructions lie behind it."""
    words = [*li(2, turns), *li(5, RAM + 0x8000)]
    loop = [
        ENCODE("sw", rs1=5, rs2=2, imm=0),
        ENCODE("add", rd=3, rs1=3, rs2=2),
        ENCODE("mul", rd=4, rs1=3, rs2=2),
        ENCODE("addi", rd=2, rs1=2, imm=-1),
    ]
    words += [*loop, ENCODE("bne", rs1=2, rs2=0, imm=-4 * len(loop)), *after, *guest.exit_code(0)]
    return guest.program(*words, *(MATCH.values() if data else ()))


def machine(mode: str, program: Program, instructions: tuple[CustomInstruction, ...] = (), **settings: Any) -> Platform:
    platform = Platform(load(overrides={"npu.mode": mode, **settings}).config, instructions=instructions)
    platform.load(program)
    return platform


def calls_of(mode: str, program: Program, instructions: tuple[CustomInstruction, ...] = ()) -> int:
    """Calls of Python functions in a run that nothing looks at."""
    platform = machine(mode, program, instructions)
    stops: list[Stop] = []
    counted = calls(lambda: stops.append(platform.run()))
    assert not platform.clock.machine.kinds >> LogKind.STORES & 1
    assert stops[0].code == 0
    return counted


def test_a_chance_bit_pattern_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both modes, patterns in data, and custom instructions of users: one speed: native code makes no further calls."""
    monkeypatch.setenv("PYV_NPU_CACHE", "off")  # a program that has run before begins with native code
    own = looping(400_000, ENCODE("addi", rd=1, rs1=0, imm=0), 0x5C00_002B)
    cases = [(mode, *case) for mode in ("loose", "tight") for case in ((looping(400_000), ()), (own, (OWN,)))]
    for case in (("loose", looping(400_000, data=False)), *cases):
        calls_of(*case)  # imports, and compiles
    plain = calls_of("loose", looping(400_000, data=False))
    for case in cases:
        assert calls_of(*case) < plain + 2_000, case


def submission() -> list[int]:
    """Stores the 64 bytes of a NOP and hands them over."""
    words = [*li(6, DESCRIPTOR)]
    words += [ENCODE("sw", rs1=6, rs2=0, imm=4 * word) for word in range(16)]
    return [*words, MATCH["enqcmd"] | 6 << 15 | 1 << 7]


ENABLE = [
    *li(7, NPU_BASE + CTRL),
    ENCODE("addi", rd=8, rs1=0, imm=1),
    ENCODE("sw", rs1=7, rs2=8, imm=0),
    ENCODE("fence", imm=0xFF),
]


def test_submissions_are_measured_from_where_the_npu_is_used() -> None:
    """Alike by all engines, and from their first stores."""
    rows = []
    for engine in ("reference", "fast"):
        program = looping(60_000, *ENABLE, *submission(), *submission())
        platform = machine("tight", program, **{"core.engine": engine})
        platform.run(until=50_000)
        assert not platform.clock.machine.following
        assert platform.run().code == 0
        assert platform.clock.machine.following
        rows.append([(row.t0, row.t1, row.t2, row.leave) for row in platform.result().accepted])
    assert rows[0] == rows[1]
    (first, *_), (second, *_) = rows[0]
    assert first is not None and second is not None
    assert 300_000 < first < second


def register(name: str, value: int) -> list[int]:
    """Write a register of the NPU."""
    offset = next(one.offset for one in REGISTERS if one.name == name)
    return [*li(7, NPU_BASE + offset), *li(8, value), ENCODE("sw", rs1=7, rs2=8, imm=0), ENCODE("fence", imm=0xFF)]


@pytest.mark.parametrize("reset", [False, True])
def test_what_a_soft_reset_takes_from_the_ring_is_lost_and_not_rejected(reset: bool) -> None:
    """The counters and the table of submissions use the word alike."""
    slots = [*li(6, DESCRIPTOR), *[ENCODE("sw", rs1=6, rs2=0, imm=4 * word) for word in range(48)]]
    start = [*register("QUEUE_BASE_LO", DESCRIPTOR), *register("CTRL", 1)]
    words = [*start, *slots, *register("DOORBELL", 3)]
    if reset:
        words += [*register("CTRL", 2), *start, *slots, *register("DOORBELL", 3)]
    platform = machine("loose", looping(10, *words, *li(2, 2000), ENCODE("addi", rd=2, rs1=2, imm=-1),
                                        ENCODE("bne", rs1=2, rs2=0, imm=-4)))  # fmt: skip
    assert platform.run().code == 0
    made, counters = platform.result(), platform.npu.counters
    assert counters.rejected == made.rejected == 0
    assert len(made.accepted) == counters.accepted
    assert made.lost + counters.accepted == 3 + 3 * reset
    assert bool(made.lost) == reset


def test_a_custom_instruction_is_use() -> None:
    """Refused, as the device is not enabled: what follows is looked at."""
    platform = machine("tight", looping(10, *submission()))
    assert platform.run().code == 0
    assert platform.result().rejected == 0  # busy: it could be tried again
    assert platform.clock.machine.following


@needs(GCC, PICOLIBC)
@pytest.mark.parametrize("level", ["O2", *slow("O0", "Os", "O3")])
@pytest.mark.parametrize("march", ["rv32imac", *slow("rv32im")])
def test_a_benchmark_of_any_march_and_level_runs_alike_in_both_modes(tmp_path: Path, march: str, level: str) -> None:
    """At full speed: nothing looks at its instructions. A table of constants has patterns of all instructions."""
    folder = firmware_folder()
    table = tmp_path / "table.c"
    words = ", ".join(hex(match) for match in (*MATCH.values(), OWN.match))
    table.write_text(f"__attribute__((used)) const unsigned table[] = {{{words}}};\n")
    sources = [*(folder / source for source in RUNTIME_SOURCES), folder / "bench/bench_mixed.c", table]
    image = tmp_path / "bench.elf"
    flags = [f"-march={march}_zicsr_zifencei", "-mabi=ilp32", "-std=c99", f"-{level}", *LIBRARY_FLAGS, "-DROUNDS=20"]
    objects = []
    for source in sources:
        objects.append(str(tmp_path / f"{source.stem}.o"))
        command = [GCC, *flags, f"-I{folder / HEADERS}", "-c", str(source), "-o", objects[-1]]
        subprocess.run(command, check=True, capture_output=True)
    link = [f"-march={march}", "-mabi=ilp32", *LIBRARY_FLAGS, "-nostartfiles", "-static", f"-T{folder / LINKER_SCRIPT}"]
    subprocess.run([GCC, *link, "-Wl,--nmagic,--no-relax", *objects, "-o", str(image)], check=True, capture_output=True)
    program = replace(elf.read_elf(image), symbols={}, functions=())
    ends = []
    for mode in ("loose", "tight"):
        platform = machine(mode, program, (OWN,), **{"core.isa": f"{march}_zicsr_zifencei"})
        ends.append((platform.run(), platform.cycle, platform.hart.instret))
        assert not platform.clock.machine.following
    assert ends[0] == ends[1] and ends[0][0].code == 0


def test_own_instructions_do_not_count_as_use() -> None:
    seen: list[int] = []

    def note(operands: Operands) -> int:
        seen.append(operands.now)
        return 0

    custom = CustomInstruction("own", 0x5C00_002B, 0xFE00_707F, "rd,rs1,rs2", note)
    platform = machine("tight", looping(60_000, 0x5C00_002B), (custom,))
    platform.run()
    assert seen and not platform.clock.machine.following
