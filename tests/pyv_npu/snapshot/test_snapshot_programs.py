"""Every shipped program, and random ones that trap: saved anywhere, resumed on any engine, stepped back."""

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import guest
import onnx
import pytest
from guest import ENCODE, RAM, li
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.memory_map import CLINT_BASE
from pyv_ext.elf import Program, Segment
from pyv_ext.engines.core import StopReason
from pyv_ext.gdb.debugger import Debugger
from pyv_ext.pyv_adapter import loader
from pyv_npu.boot import find_program, shipped_programs
from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.debug import time_machine
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot

ARGUMENTS = {"submit_latency": {"n": 4, "tile": 16}}
LONG = ("gemm", "fault_queue_full", "fault_doorbell")
"""Programs that take more than half a million cycles."""
SHORT = tuple(name for name in shipped_programs() if name not in LONG)
needs_pyv = pytest.mark.skipif(loader.missing() is not None, reason=str(loader.missing()))
FEW = settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
NATIVE = ("reference", "fast")


def machine(program: Program | str, engine: str, mode: str = "tight", preset: str = "soc-axi") -> Platform:
    overrides = {"npu.dram.size": 16 << 20, "npu.mode": mode, "core.engine": engine, "run.max_cycles": 30_000_000}
    platform = Platform(load(preset=preset, overrides=overrides).config)
    if isinstance(program, str):
        platform.load(find_program(program), ARGUMENTS.get(program))
    else:
        platform.load(program)
    return platform


def outcome(platform: Platform) -> dict[str, Any]:
    """Run to the end: all that a run leaves."""
    stop, hart, csrs = platform.run(), platform.hart, platform.hart.csrs
    return {
        "stop": stop,
        "hart": (hart.pc, hart.cycle, hart.instret, hart.traps, *hart.x[:32]),
        "csrs": (csrs.mstatus, csrs.mie, csrs.mip, csrs.mepc, csrs.mcause, csrs.mtval, csrs.mtvec),
        "uart": platform.console.text,
        "events": (platform.events.count, platform.events.hexdigest()),
        "npu": platform.npu.counters.to_json(),
        "latency": platform.result().to_json(),
        "ram": platform.ram.u8[: 1 << 20].tobytes(),
    }


def never() -> bool:
    return False


def place(platform: Platform) -> tuple[int, ...]:
    hart = platform.hart
    return (hart.pc, hart.cycle, hart.instret, hart.traps, hart.csrs.mepc, hart.csrs.mcause, hart.csrs.mtval,
            *hart.x[:32])  # fmt: skip


def steps_there_and_back(platform: Platform, count: int) -> None:
    """Each step back is at the moment before that step. A program that ends on the way is restored instead."""
    saved = platform.save()
    debugger = Debugger(platform.engine, time_machine=time_machine(platform))
    seen = []
    for _ in range(count):
        seen.append(place(platform))
        if debugger.step(never).end is not None:
            return platform.restore(saved)
    for before in reversed(seen):
        assert not debugger.step_back().begin
        assert place(platform) == before
    return None


def check(program: Program | str, engines: Sequence[str], cuts: Sequence[float], *, mode: str, preset: str) -> None:
    """A run that moves to the next engine at each cut, where it also steps there and back, is that of the first one."""
    whole = outcome(machine(program, engines[0], mode, preset))
    assert whole["stop"].reason is StopReason.EXIT
    platform = machine(program, engines[0], mode, preset)
    for number, cut in enumerate(sorted(cuts), 1):
        platform.run(until=int(cut * whole["hart"][1]))
        steps_there_and_back(platform, 12)
        saved = platform.save().to_bytes()
        platform = machine(program, engines[number % len(engines)], mode, preset)
        platform.restore(Snapshot.from_bytes(saved))
    assert outcome(platform) == whole


CUTS = st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2)
MODES = st.sampled_from(["tight", "loose"])
ORDERS = st.permutations(NATIVE)


# -- shipped programs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHORT)
@FEW
@given(cuts=CUTS, mode=MODES, engines=ORDERS)
def test_every_program_can_be_cut_anywhere(name: str, cuts: list[float], mode: str, engines: list[str]) -> None:
    check(name, engines, cuts, mode=mode, preset="soc-axi")


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_programs())
@MANY
@given(cuts=CUTS, mode=MODES, engines=ORDERS)
def test_every_program_can_be_cut_at_many_cycles(name: str, cuts: list[float], mode: str, engines: list[str]) -> None:
    check(name, engines, cuts, mode=mode, preset="soc-axi")


@cache
def image(folder: Path) -> str:
    """A compiled model for `run_model`."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (8, 8)) for name in "xy")
    nodes = [onnx.helper.make_node("MatMul", ["x", "x"], ["a"]), onnx.helper.make_node("Relu", ["a"], ["y"])]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y])), folder / "m.onnx")
    assert main(["compile", str(folder / "m.onnx"), "-o", str(folder / "out")]) == 0
    return str(folder / "out/image.elf")


@FEW
@given(cuts=CUTS, mode=MODES, engines=ORDERS)
def test_a_compiled_model_can_be_cut_anywhere(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[float], mode: str, engines: list[str]
) -> None:
    check(image(tmp_path_factory.getbasetemp()), engines, cuts, mode=mode, preset="soc-axi")


@needs_pyv
@pytest.mark.slow
@pytest.mark.parametrize("name", ["hello", "fault_illegal", "fault_access", "fault_timeout", "submit_latency"])
@FEW
@given(cuts=CUTS, order=st.sampled_from([("pyv",), ("pyv", "fast"), ("reference", "pyv")]))
def test_programs_on_pyv_can_be_cut_anywhere(name: str, cuts: list[float], order: tuple[str, ...]) -> None:
    check(name, order, cuts, mode="tight", preset="pyv")


# -- random programs with traps --------------------------------------------------------------------------------

DATA, POINTER, TURNS, SUM, TEMP = RAM + 0x4000, 8, 9, 18, 30
FREE = (*range(10, 18), *range(20, 28))
ROUTINE = 40


def random_program(seed: int, turns: int) -> Program:
    """A loop of random instructions, many of which trap, under a timer interrupt; the handler keeps a checksum of
    causes, goes on after what trapped, and sets the timer anew."""
    chance = random.Random(seed)
    names = ("add", "sub", "xor", "sltu", "sll", "sra", "mul", "mulhu", "div", "rem", "and", "or")

    def one() -> list[int]:
        rd, rs1, rs2 = chance.choice(FREE), chance.choice(FREE), chance.choice(FREE)
        match chance.randrange(12):
            case 0:
                return [ENCODE(chance.choice(("ecall", "ebreak")))]
            case 1:
                return [chance.choice((0xFFFF_FFFF, 0x0000_000B | 7 << 12, 0xC000_1073))]
            case 2:
                return [ENCODE("lw", rd=rd, rs1=POINTER, imm=chance.choice((1, 2, 3)))]
            case 3:
                return [ENCODE("sw", rs1=0, rs2=rs2, imm=4 * chance.randrange(16))]
            case 4:
                return [ENCODE("csrrs", rd=rd, rs1=0, csr=chance.choice((0x342, 0x343, 0x800, 0x300)))]
            case 5 | 6:
                return [ENCODE("sw", rs1=POINTER, rs2=rs2, imm=4 * chance.randrange(64))]
            case 7 | 8:
                return [ENCODE("lw", rd=rd, rs1=POINTER, imm=4 * chance.randrange(64))]
            case 9:
                return [ENCODE("beq", rs1=rs1, rs2=rs2, imm=8), ENCODE("addi", rd=rd, rs1=rd, imm=1)]
            case _:
                return [ENCODE(chance.choice(names), rd=rd, rs1=rs1, rs2=rs2)]

    def timer() -> list[int]:
        now, compare = (offset + CLINT_BASE for offset in (0xBFF8, 0x4000))
        words = [*li(TEMP, now), ENCODE("lw", rd=29, rs1=TEMP, imm=0), *li(TEMP, compare)]
        words += [ENCODE("addi", rd=29, rs1=29, imm=chance.randrange(4, 20)), ENCODE("sw", rs1=TEMP, rs2=29, imm=0)]
        return [*words, ENCODE("sw", rs1=TEMP, rs2=0, imm=4)]

    handler = [
        ENCODE("csrrs", rd=TEMP, rs1=0, csr=0x342),
        ENCODE("slli", rd=28, rs1=SUM, imm=5),
        ENCODE("add", rd=SUM, rs1=SUM, rs2=28),
        ENCODE("add", rd=SUM, rs1=SUM, rs2=TEMP),
    ]
    on_timer = [*timer(), ENCODE("mret")]
    handler += [ENCODE("bge", rs1=TEMP, rs2=0, imm=4 * (len(on_timer) + 1)), *on_timer]
    handler += [ENCODE("csrrs", rd=TEMP, rs1=0, csr=0x341), ENCODE("addi", rd=TEMP, rs1=TEMP, imm=4)]
    handler += [ENCODE("csrrw", rd=0, rs1=TEMP, csr=0x341), ENCODE("mret")]
    at = RAM + 0x800
    start = [*li(TEMP, at), ENCODE("csrrw", rd=0, rs1=TEMP, csr=0x305), *li(POINTER, DATA), *li(TURNS, turns)]
    start += [*timer(), ENCODE("addi", rd=TEMP, rs1=0, imm=0x80), ENCODE("csrrw", rd=0, rs1=TEMP, csr=0x304)]
    start += [ENCODE("csrrsi", rd=0, imm=8, csr=0x300)]
    body = [word for _ in range(ROUTINE) for word in one()]
    body += [ENCODE("addi", rd=TURNS, rs1=TURNS, imm=-1)]
    body += [ENCODE("bne", rs1=TURNS, rs2=0, imm=-4 * len(body))]
    words = [*start, *body, *guest.exit_code(SUM)]
    assert len(words) * 4 < 0x800
    words += [0] * (0x200 - len(words)) + handler
    data = b"".join(word.to_bytes(4, "little") for word in words)
    return Program(f"random {seed}", RAM, (Segment(RAM, data, len(data), True),), {}, (), ())


@settings(FEW, max_examples=3)
@given(seed=st.integers(0, 1 << 32), cuts=CUTS, mode=MODES, engines=ORDERS)
def test_a_random_program_that_traps_can_be_cut_anywhere(
    seed: int, cuts: list[float], mode: str, engines: list[str]
) -> None:
    check(random_program(seed, 200), engines, cuts, mode=mode, preset="soc-axi")


def test_random_programs_trap_in_all_ways() -> None:
    causes: set[int] = set()
    for seed in range(3):
        platform = machine(random_program(seed, 20), "reference")
        while platform.engine.step() is None:
            causes.add(platform.hart.csrs.mcause)
        assert platform.hart.traps > 50
    assert causes >= {2, 3, 4, 7, 11, 1 << 31 | 7}


@pytest.mark.slow
@settings(MANY, max_examples=draws(25))
@example(seed=0, cuts=[0.9999999999999999] * 2, mode="tight", engines=["reference", "fast"])
@given(seed=st.integers(0, 1 << 32), cuts=CUTS, mode=MODES, engines=ORDERS)
def test_many_random_programs_can_be_cut_anywhere(seed: int, cuts: list[float], mode: str, engines: list[str]) -> None:
    check(random_program(seed, 500), engines, cuts, mode=mode, preset="soc-axi")


@needs_pyv
@settings(FEW, max_examples=2)
@given(seed=st.integers(0, 1 << 32), cuts=CUTS, order=st.sampled_from([("pyv",), ("pyv", "fast"), ("fast", "pyv")]))
def test_a_random_program_on_pyv_can_be_cut_anywhere(seed: int, cuts: list[float], order: tuple[str, ...]) -> None:
    check(random_program(seed, 20), order, cuts, mode="tight", preset="pyv")
