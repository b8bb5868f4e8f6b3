from pathlib import Path

import device_oracles as oracles
import pytest
from device_rig import RAM, Rig

from pyv_ext.elf import Program, Segment, Symbol, load, read_elf
from pyv_ext.errors import PyvExtError
from pyv_ext.tracing.commits import signature

SOURCE = """
.globl _start, begin_signature, end_signature
_start: j .
.data
.word 0x11111111
begin_signature: .word 0xdeadbeef, 0, 0x0000000a
end_signature: .word 0x22222222
"""


def program(**symbols: int) -> Program:
    named = {name: Symbol(name, address, 0) for name, address in symbols.items()}
    return Program("x.elf", RAM, (Segment(RAM, b"", 4, True),), named, (), ())


def test_words_between_the_symbols(tmp_path: Path) -> None:
    rig, executable = Rig(), read_elf(oracles.build(tmp_path, SOURCE))
    load(executable, rig.bus)
    assert signature(executable, rig.bus) == "deadbeef\n00000000\n0000000a\n"


def test_an_empty_signature() -> None:
    assert signature(program(begin_signature=RAM, end_signature=RAM), Rig().bus) == ""


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ({}, "x.elf: no symbol begin_signature: a signature needs begin_signature and end_signature"),
        (
            {"begin_signature": RAM},
            "x.elf: no symbol end_signature: a signature needs begin_signature and end_signature",
        ),
        *(
            (
                {"begin_signature": begin, "end_signature": end},
                f"x.elf: begin_signature {begin:#x} and end_signature {end:#x} must enclose whole 32-bit words of "
                "memory: correct the program",
            )
            for begin, end in ((RAM, RAM + 6), (RAM + 8, RAM), (0, 64), (RAM, RAM + (1 << 30)))
        ),
    ],
)
def test_what_is_no_signature(symbols: dict[str, int], message: str) -> None:
    with pytest.raises(PyvExtError) as raised:
        signature(program(**symbols), Rig().bus)
    assert str(raised.value) == message
