"""Floating point against QEMU: results, flags and traps of random instructions over operands at the edges."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_machine import BareMachine
from native_forms import FORMS
from qemu import Qemu, needs_qemu
from random_floats import CODE, OPERANDS, OUTPUT, FloatProgram, float_program
from shares import slow

from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.isa import Isa

pytestmark = needs_qemu

ISAS = ("rv32imafdcu_zicsr_zifencei", "rv32imafcu_zicsr_zifencei", "rv32imafdu_zicsr_zifencei")
ITEMS, QUICK = 1200, 120
CYCLES = 1_000_000


def images(program: FloatProgram) -> Iterator[tuple[int, bytes]]:
    yield CODE, program.code
    yield OPERANDS, program.operands


def of_qemu(program: FloatProgram, isa: Isa) -> bytes:
    """What the program leaves in memory on QEMU: operands, then output."""
    letters = "".join(letter for letter in "fd" if letter in isa.extensions)
    with tempfile.TemporaryDirectory() as folder:
        flags = []
        for address, data in images(program):
            image = Path(folder) / f"{address:x}"
            image.write_bytes(data)
            flags += ["-device", f"loader,file={image},addr={address:#x},force-raw=on"]
        with Qemu(*flags, compressed="c" in isa.extensions, floating=letters) as oracle:
            oracle.start()
            oracle.finish()
            return oracle.memory(OPERANDS, len(program.operands)) + oracle.memory(OUTPUT, program.output)


def of_ours(program: FloatProgram, isa: Isa, engine: str) -> bytes:
    machine = BareMachine(isa.name, engine=engine)
    for address, data in images(program):
        machine.bus.poke(address, data)
    finished = Stop(StopReason.EXIT, 0)
    machine.engine.code.add_hook(CODE + len(program.code) - 8, lambda hart: finished)  # the store that ends it on QEMU
    assert machine.run(CYCLES) == finished
    found = [machine.bus.peek(OPERANDS, len(program.operands)), machine.bus.peek(OUTPUT, program.output)]
    return b"".join(part or b"" for part in found)


@pytest.mark.parametrize("isa", [Isa(name) for name in ISAS], ids=lambda isa: isa.name.partition("_")[0])
@pytest.mark.parametrize("of", [(3, QUICK), *slow((1, ITEMS), (2, ITEMS))], ids="{0[1]} of seed {0[0]}".format)
def test_no_difference(isa: Isa, of: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """`of`: seed and items."""
    program = float_program(isa, *of)
    expected = of_qemu(program, isa)
    for form in FORMS:
        with monkeypatch.context() as patch:
            form.choose(patch)
            found = of_ours(program, isa, form.engine)
        assert difference(expected, found, len(program.operands)) == ""


def difference(expected: bytes, found: bytes, operands: int) -> str:
    for at in range(0, len(expected), 8):
        if expected[at : at + 8] != found[at : at + 8]:
            where = f"output {(at - operands) // 8}" if at >= operands else f"operand {at // 8}"
            return f"{where}: QEMU {expected[at : at + 8][::-1].hex()}, we {found[at : at + 8][::-1].hex()}"
    return ""
