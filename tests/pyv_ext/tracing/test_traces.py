"""Commit log and profile on small programs. tests/oracles compares the commit log with Spike's."""

from collections import Counter
from pathlib import Path

import device_oracles as oracles
import pytest
from device_rig import RAM
from hart_rig import HANDLER, PORT, Rig

from pyv_ext.elf import Program, Segment, Symbol, load, read_elf
from pyv_ext.protocols import CustomInstruction, Value
from pyv_ext.timing import CoreTiming
from pyv_ext.tracing.commits import CommitLog
from pyv_ext.tracing.profile import CUSTOM, DEVICE, IDLE, UNKNOWN, Profile, Share
from pyv_ext.tracing.tracers import add_tracer, remove_tracer

MAC = CustomInstruction("mac", 0x0000_000B, 0x0000_707F, "rd,rs1,rs2", lambda operands: Value(operands.rs1 + 1, 7))


class Window:
    """A CSR of a device: holds five bits, so that a write is not what is read back."""

    addresses = frozenset({0x7C0})
    value = 0

    def read(self, address: int, now: int) -> int:
        return self.value

    def write(self, address: int, value: int, now: int, written: int) -> None:
        self.value = value & 31


def commits(rig: Rig, steps: int) -> list[str]:
    lines: list[str] = []
    rig.engine.tracer = CommitLog(rig.hart, rig.bus, lines.append)
    rig.steps(steps)
    return lines


def test_each_part_of_a_line() -> None:
    rig = Rig("addi x10,x0,-1\nc.addi x10,1\nlw x30,4(x2)\nsb x30,0(x2)\nbeq x0,x0,4\n")
    rig.hart.x[2] = RAM + 0x100
    rig.bus.poke(RAM + 0x104, b"\x11\x22\x33\x44")
    assert commits(rig, 5) == [
        "core   0: 3 0x80000000 (0xfff00513) x10 0xffffffff\n",
        "core   0: 3 0x80000004 (0x0505) x10 0x00000000\n",
        "core   0: 3 0x80000006 (0x00412f03) x30 0x44332211 mem 0x80000104\n",
        "core   0: 3 0x8000000a (0x01e10023) mem 0x80000100 0x11\n",
        "core   0: 3 0x8000000e (0x00000263)\n",
    ]


def test_hart_and_privilege() -> None:
    rig = Rig("addi x1,x0,1\necall", handler="mret", isa="rv32iu_zicsr")
    rig.hart.hart_id, rig.hart.priv = 12, 0
    assert commits(rig, 3) == [
        "core  12: 0 0x80000000 (0x00100093) x1  0x00000001\n",
        "core  12: 3 0x80000400 (0x30200073) c768_mstatus 0x00000080 c784_mstatush 0x00000000\n",
    ]


def test_custom_instructions_and_csrs_of_devices() -> None:
    rig = Rig("mac x3,x1,x2\ncsrrw x4,0x7c0,x1", custom=[MAC])
    rig.hart.csrs.add_window(Window())
    rig.hart.x[1] = 0x7F
    assert commits(rig, 2) == [
        "core   0: 3 0x80000000 (0x0020818b) x3  0x00000080\n",
        "core   0: 3 0x80000004 (0x7c009273) x4  0x00000000 c1984_unknown-csr 0x0000001f\n",
    ]


# -- profile ---------------------------------------------------------------------------------------------------

TIMING = CoreTiming(load=2, store=3, mmio_read=20, mmio_write=4, div=9, custom=2, trap=6, irq=5)


def program(**functions: tuple[int, int]) -> Program:
    symbols = tuple(Symbol(name, address, size) for name, (address, size) in functions.items())
    ordered = tuple(sorted(symbols, key=lambda symbol: symbol.address))
    return Program("x.elf", RAM, (Segment(RAM, b"", 4, True),), {s.name: s for s in symbols}, ordered, ())


def profiled(rig: Rig, steps: int) -> Profile:
    profile = rig.engine.tracer = Profile(rig.timing)
    rig.steps(steps)
    return profile


def test_stalls_are_what_goes_beyond_the_class() -> None:
    text = "div x1,x1,x2\nlw x3,0(x4)\nlw x3,0(x5)\nsw x3,0(x5)\nmac x6,x1,x2\nwfi"
    rig = Rig(text, custom=[MAC], timing=TIMING, lines=[(100, 8)])
    rig.hart.csrs.mie = 8
    rig.hart.x[4], rig.hart.x[5] = RAM, PORT
    profile = profiled(rig, 6)
    assert profile.cycles == {RAM: 9, RAM + 4: 2, RAM + 8: 20, RAM + 12: 4, RAM + 16: 9, RAM + 20: 57}
    assert profile.cycles.total() == rig.hart.cycle == 101
    stalls = {(RAM + 8, DEVICE): 18, (RAM + 12, DEVICE): 1, (RAM + 16, CUSTOM): 7, (RAM + 20, IDLE): 56}
    assert profile.stalls == stalls
    assert profile.mnemonics == {"div": 1, "lw": 2, "sw": 1, "mac": 1, "wfi": 1}


def test_functions_have_what_happens_in_them() -> None:
    rig = Rig("lw x3,0(x5)\necall\naddi x1,x1,1\njal x0,-4", handler="csrrw x0,mepc,x7\nmret", timing=TIMING)
    rig.hart.x[5], rig.hart.x[7] = PORT, RAM + 8
    profile = profiled(rig, 8)
    assert (profile.traps, profile.interrupts) == (1, 0)
    found = profile.functions(program(main=(RAM, 8), loop=(RAM + 8, 8), other=(RAM + 0x100, 4)))
    assert found == [
        Share("main", 1, 26, Counter({DEVICE: 18}), RAM),
        Share("loop", 4, 4, Counter(), RAM + 8),
        Share(UNKNOWN, 2, 2, Counter(), HANDLER),
    ]
    assert found[0].executing == 8
    assert sum(share.instructions for share in found) == rig.hart.instret
    assert sum(share.cycles for share in found) == rig.hart.cycle
    assert profile.folded(program(main=(RAM, 8), handler=(HANDLER, 8))) == (
        f"main 8\nmain;[{DEVICE}] 18\n{UNKNOWN} 4\nhandler 2\n"
    )


def test_an_interrupt_counts_where_it_was_taken() -> None:
    rig = Rig("addi x1,x1,1\naddi x1,x1,1", handler="addi x2,x2,1", timing=TIMING, lines=[(1, 8)])
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = 8, 8
    profile = profiled(rig, 3)
    assert profile.interrupts == 1
    assert profile.cycles == {RAM: 1, RAM + 4: 5, HANDLER: 1}
    assert profile.instructions == {RAM: 1, HANDLER: 1}


def test_mapping_symbols_are_no_functions(tmp_path: Path) -> None:
    source = """
    .globl _start
    _start: nop
    .word 0x00000013    # data within code: the assembler marks it by $d, and what follows by $x
    nop
    .Llocal: j .
    """
    executable = read_elf(oracles.build(tmp_path, source))
    rig = Rig()
    load(executable, rig.bus)
    profile = profiled(rig, 6)
    assert [share.function for share in profile.functions(executable)] == ["_start"]


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_instruction_counts(steps: int) -> None:
    profile = profiled(Rig("addi x1,x1,1\njal x0,-4"), steps)
    assert profile.instructions == Counter([RAM, RAM + 4, RAM, RAM + 4, RAM][:steps])


# -- several at once -------------------------------------------------------------------------------------------


def test_tracers_come_and_go() -> None:
    rig = Rig("addi x1,x1,1\naddi x1,x1,1\naddi x1,x1,1\necall")
    first, second = Profile(rig.timing), Profile(rig.timing)
    add_tracer(rig.engine, first)
    assert rig.engine.tracer is first
    rig.steps(1)
    add_tracer(rig.engine, second)
    add_tracer(rig.engine, second)
    rig.steps(1)
    remove_tracer(rig.engine, first)
    remove_tracer(rig.engine, first)
    rig.steps(2)
    assert (first.instructions.total(), first.traps) == (2, 0)
    assert (second.instructions.total(), second.traps) == (2, 1)
    remove_tracer(rig.engine, second)
    assert rig.engine.tracer is None


def test_tracers_are_called_in_the_order_in_which_they_came() -> None:
    rig = Rig("addi x1,x1,1\necall")
    calls: list[str] = []
    for name in ("a", "b", "c"):
        add_tracer(rig.engine, CommitLog(rig.hart, rig.bus, lambda line, name=name: calls.append(name)))
    rig.steps(2)
    assert calls == ["a", "b", "c"]
