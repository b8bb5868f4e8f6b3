"""A program with instructions that the core does not know is refused when it is loaded, in one line with the remedy."""

import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from external_tools import GCC, needs

from npu_device.abi.memory_map import NOTE_FILE, NOTE_OWNER
from pyv_ext.elf import ElfNote, Program, Segment, read_elf
from pyv_npu.boot import check, find_program, requirements
from pyv_npu.config import load
from pyv_npu.errors import BadInputError
from pyv_npu.platform import Platform

BASE = "rv32im_zicsr_zifencei"


@pytest.fixture(scope="module")
def hello() -> Program:
    return read_elf(Path(find_program("hello")))


WORDS = {
    "a": (0x1005_202F,),  # lr.w x0, (x10)
    "c": (0x0001_0001,),  # c.nop
    "zba": (0x20B5_2533,),  # sh1add x10, x10, x11
    "f": (0x0005_2007, 0x00B5_7553),  # flw, fadd.s
    "d": (0x0005_3007, 0x02B5_7553),  # fld, fadd.d
}
"""Instructions of an extension."""


def using(program: Program, *extensions: str) -> Program:
    """A program built for extensions, with instructions of them behind its own."""
    own = next(segment for segment in program.segments if segment.executable)
    words = b"".join(word.to_bytes(4, "little") for name in extensions for word in WORDS.get(name, ()))
    at = program.segments[-1].end + 0x100 & -4
    more = Segment(at, words, len(words), True)
    assert own.data
    return replace(
        program, name="x.elf", extensions=extensions, segments=(*program.segments, more),
        code=(*program.code, (at, len(words))),
    )  # fmt: skip


TRAP = "or let them trap: --set core.missing_extensions=trap"


def refusal(program: Program, *extensions: str, engine: str = "reference") -> str:
    config = load(overrides={"core.engine": engine, "core.isa": BASE}).config
    program = using(program, *extensions)
    with pytest.raises(BadInputError) as caught:
        check(program, requirements(program), config)
    return str(caught.value)


@pytest.mark.parametrize(("built", "isa"), [(64, BASE), (32, "rv64imac_zicsr_zifencei")])
def test_a_program_for_another_width_of_registers_is_refused(hello: Program, built: int, isa: str) -> None:
    with pytest.raises(BadInputError) as caught:
        check(replace(hello, name="x.elf", xlen=built), requirements(hello), load(overrides={"core.isa": isa}).config)
    assert str(caught.value) == (
        f"x.elf: built for rv{built}, core.isa is {isa}: rebuild it for that, or set core.isa to an instruction set of "
        f"rv{built}"
    )


def test_what_the_core_lacks_is_named_with_both_remedies(hello: Program) -> None:
    assert refusal(hello, "i", "m", "a", "c", "zicsr", "zba", "zmmul") == (
        f"x.elf: has instructions of a, c, zba, core reference is {BASE}: rebuild it with -march={BASE}, "
        f"or --set core.isa=rv32imac_zicsr_zifencei_zba, {TRAP}"
    )


def test_floating_point_is_named_by_its_letters(hello: Program) -> None:
    assert refusal(hello, "i", "f", "d") == (
        f"x.elf: has instructions of f, d, core reference is {BASE}: rebuild it with -march={BASE}, "
        f"or --set core.isa=rv32imdf_zicsr_zifencei, {TRAP}"
    )


@pytest.mark.parametrize("extension", ["a", "c", "f"])
def test_the_pyv_core_cannot_be_given_more(hello: Program, extension: str) -> None:
    assert refusal(hello, "i", extension, engine="pyv") == (
        f"x.elf: has instructions of {extension}, core pyv is {BASE}: rebuild it with -march={BASE}, {TRAP}"
    )


@pytest.mark.parametrize("extensions", [(), ("i", "m"), ("i", "m", "zmmul", "zicsr"), ("e",)])
def test_what_the_core_has_is_accepted(hello: Program, extensions: tuple[str, ...]) -> None:
    program = replace(hello, extensions=extensions)
    check(program, requirements(program), load(overrides={"core.isa": BASE}).config)


def test_what_the_code_needs_counts_not_what_the_attribute_says(hello: Program) -> None:
    """Built for rv32gc, as compilers of others are set up, and without an instruction of A, F, D or C."""
    program = replace(hello, extensions=("i", "m", "a", "f", "d", "c", "zicsr", "zifencei"))
    check(program, requirements(program), load(overrides={"core.isa": BASE}).config)


@pytest.mark.parametrize("extension", ["a", "c", "zba", "f", "d"])
def test_missing_instructions_may_trap(hello: Program, extension: str) -> None:
    config = load(overrides={"core.isa": BASE, "core.missing_extensions": "trap"}).config
    program = using(hello, "i", extension)
    check(program, requirements(program), config)


@needs(GCC)
@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_an_image_for_rv32g_runs_up_to_its_first_instruction_of_f(tmp_path: Path, engine: str) -> None:
    source, image = tmp_path / "a.S", tmp_path / "a.elf"
    source.write_text("""
        .globl _start
    _start: la t0, handler; csrw mtvec, t0; .word 0x00052007
    handler: csrr a0, mcause; slli a0, a0, 16; li t1, 0x3333; or a0, a0, t1; li t1, 0x100000; sw a0, 0(t1); j .
    """)
    flags = ["-march=rv32g", "-mabi=ilp32", "-nostdlib", "-nostartfiles", "-Wl,-Ttext=0x80000000,-n"]
    subprocess.run([GCC, *flags, str(source), "-o", str(image)], check=True, capture_output=True)
    settings = {"core.engine": engine, "core.missing_extensions": "trap"}
    platform = Platform(load(overrides=settings).config)
    platform.load(image)
    assert platform.run(until=10_000).code == 2  # illegal instruction


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc/hostname"])
def test_a_file_note_names_a_file_in_the_folder_of_the_program(hello: Program, name: bytes) -> None:
    """Or it is broken, in one line."""
    note = ElfNote(NOTE_OWNER, NOTE_FILE, struct.pack("<2Q32x", 0, 4) + name + b"\0")
    program = replace(hello, name="x.elf", notes=(*hello.notes, note))
    with pytest.raises(BadInputError, match=f"x.elf: note of type {NOTE_FILE} in .* is broken"):
        requirements(program)
    with pytest.raises(BadInputError, match="is broken"):
        Platform(load().config).load(program)
