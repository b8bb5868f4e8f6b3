"""A program with instructions that the core does not know is refused when it is loaded, in one line with the remedy."""

from dataclasses import replace
from pathlib import Path

import pytest

from pyv_ext.elf import Program, read_elf
from pyv_npu.boot import check, find_program, requirements
from pyv_npu.config import load
from pyv_npu.errors import BadInputError

BASE = "rv32im_zicsr_zifencei"


@pytest.fixture(scope="module")
def hello() -> Program:
    return read_elf(Path(find_program("hello")))


def refusal(program: Program, *extensions: str, engine: str = "reference") -> str:
    config = load(overrides={"core.engine": engine, "core.isa": BASE}).config
    program = replace(program, name="x.elf", extensions=extensions)
    with pytest.raises(BadInputError) as caught:
        check(program, requirements(program), config)
    return str(caught.value)


def test_what_the_core_lacks_is_named_with_both_remedies(hello: Program) -> None:
    assert refusal(hello, "i", "m", "a", "c", "zicsr", "zba", "zmmul") == (
        f"x.elf: built with a, c, zba, core reference is {BASE}: rebuild it with -march={BASE}, "
        "or --set core.isa=rv32imac_zicsr_zifencei_zba"
    )


def test_no_core_has_floating_point(hello: Program) -> None:
    assert refusal(hello, "i", "f", "d") == (
        f"x.elf: built with f, d, core reference is {BASE}: rebuild it with -march={BASE}"
    )


@pytest.mark.parametrize("extension", ["a", "c"])
def test_the_pyv_core_cannot_be_given_more(hello: Program, extension: str) -> None:
    assert refusal(hello, "i", extension, engine="pyv") == (
        f"x.elf: built with {extension}, core pyv is {BASE}: rebuild it with -march={BASE}"
    )


@pytest.mark.parametrize("extensions", [(), ("i", "m"), ("i", "m", "zmmul", "zicsr"), ("e",)])
def test_what_the_core_has_is_accepted(hello: Program, extensions: tuple[str, ...]) -> None:
    program = replace(hello, extensions=extensions)
    check(program, requirements(program), load(overrides={"core.isa": BASE}).config)
