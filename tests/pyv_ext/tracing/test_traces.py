"""Commit log and instruction log on small programs. tests/oracles compares the commit log with Spike's."""

from device_rig import RAM
from hart_rig import Rig

from pyv_ext.protocols import CustomInstruction, Value
from pyv_ext.tracing.commits import CommitLog
from pyv_ext.tracing.instructions import TRAP, InstructionLog

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
    rig.engine.add_tracer(CommitLog(rig.hart, rig.bus, lines.append))
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


# -- several at once -------------------------------------------------------------------------------------------


def test_tracers_come_and_go() -> None:
    rig = Rig("addi x1,x1,1\naddi x1,x1,1\naddi x1,x1,1\necall")
    first, second = InstructionLog(rig.hart.isa), InstructionLog(rig.hart.isa)
    rig.engine.add_tracer(first)
    assert rig.engine.tracers == (first,)
    rig.steps(1)
    rig.engine.add_tracer(second)
    rig.engine.add_tracer(second)
    rig.steps(1)
    rig.engine.remove_tracer(first)
    rig.engine.remove_tracer(first)
    rig.steps(2)
    assert [step.trap for step in first] == [0, 0]
    assert [step.trap for step in second] == [0, 0, TRAP]
    rig.engine.remove_tracer(second)
    assert not rig.engine.tracers


def test_tracers_are_called_in_the_order_in_which_they_came() -> None:
    rig = Rig("addi x1,x1,1\necall")
    calls: list[str] = []
    for name in ("a", "b", "c"):
        rig.engine.add_tracer(CommitLog(rig.hart, rig.bus, lambda line, name=name: calls.append(name)))
    rig.steps(2)
    assert calls == ["a", "b", "c"]
