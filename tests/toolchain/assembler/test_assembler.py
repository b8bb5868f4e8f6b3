"""The assembler against GNU as and ld: the same sources give the same bytes at the same addresses."""

import random
import subprocess
from pathlib import Path

import pytest
from external_tools import needs
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.elf import parse_elf
from pyv_ext.isa import Isa
from pyv_npu.instruction_sets import every_instruction
from toolchain.assembler.program import assemble
from toolchain.assembler.source import AssemblyError

AS, LD = "riscv64-unknown-elf-as", "riscv64-unknown-elf-ld"
MARCH = "rv32imafdc_zicsr_zifencei_zba_zbb_zbs"
EVERY = every_instruction()
SCRIPT = """ENTRY(_start)
SECTIONS {
  . = 0x80000000;
  .text : ALIGN(16) { *(.text) }
  .rodata : ALIGN(16) { *(.rodata) }
  .data : ALIGN(16) { *(.data) }
  .bss : ALIGN(16) { *(.bss) }
}
"""
HEAD = ".option norvc\n.option norelax\n.globl _start\n_start:\n"


def gnu(text: str, folder: Path) -> bytes:
    (folder / "g.s").write_text(text)
    (folder / "g.ld").write_text(SCRIPT)
    for command in ([AS, f"-march={MARCH}", "-mabi=ilp32", "-o", "g.o", "g.s"],
                    [LD, "-melf32lriscv", "--no-relax", "-T", "g.ld", "-o", "g.elf", "g.o"]):  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + text
    return (folder / "g.elf").read_bytes()


def content(elf: bytes) -> list[tuple[int, bytes, int]]:
    segments = parse_elf(elf, "x.elf").segments
    merged: list[tuple[int, bytes, int]] = []
    for one in sorted(segments, key=lambda one: one.address):
        if one.size and any(one.data):
            merged.append((one.address, bytes(one.data).rstrip(b"\0"), 0))
    return merged


def flat(elf: bytes) -> bytes:
    """Memory from the first address on."""
    parts = content(elf)
    if not parts:
        return b""
    base = 0x8000_0000
    memory = bytearray(max(at + len(data) for at, data, _ in parts) - base)
    for at, data, _ in parts:
        memory[at - base : at - base + len(data)] = data
    return bytes(memory)


def some(words: str) -> st.SearchStrategy[str]:
    return st.sampled_from([*words.split()])


registers = some("zero ra sp gp tp t0 t1 t2 s0 fp a0 a1 a7 s11 t6 x3 x31")
small = st.integers(-2048, 2047).map(str)
words = st.integers(-(1 << 31), (1 << 32) - 1) | st.sampled_from([0, 2047, 2048, 4095, 4096, -2048, -2049, 0x7FFFF800])
labels = st.sampled_from(["l0", "l1", "l2"])
places = labels | st.just("buffer") | st.just("message") | st.just("buffer + 12")


def line(form: str, **parts: st.SearchStrategy[object]) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries(parts).map(lambda values: form.format(**values))


R = registers
LINES = st.one_of(
    line("li {r}, {w}", r=R, w=words),
    line("la {r}, {p}", r=R, p=places),
    line("{op} {r}, {p}", op=st.sampled_from(["lw", "lb", "lbu", "lh", "lhu"]), r=R, p=places),
    line("{op} {r}, {p}, t1", op=st.sampled_from(["sw", "sb", "sh"]), r=R, p=places),
    line("{op} {r}, {i}({b})", op=st.sampled_from(["lw", "lbu", "sw", "sb", "sh"]), r=R, i=small, b=R),
    line("{op} {a}, {b}, {i}", op=some("addi xori ori andi slti sltiu add and or xor slt"), a=R, b=R, i=small),
    line("{op} {a}, {b}, {c}", op=some("add sub mul divu sgt sgtu sh1add andn rol"), a=R, b=R, c=R),
    line("{op} {a}, {b}, {n}", op=some("slli srai sll srl bseti rori"), a=R, b=R, n=st.integers(0, 31)),
    line("{op} {a}, {b}", op=some("mv not neg seqz snez sltz sgtz zext.b clz sext.h"), a=R, b=R),
    line("{op} {a}, {l}", op=some("beqz bnez blez bgez bltz bgtz jal"), a=R, l=labels),
    line("{op} {a}, {b}, {l}", op=some("beq bne blt bge bltu bgeu bgt ble bgtu bleu"), a=R, b=R, l=labels),
    line("{op} {l}", op=st.sampled_from(["j", "jal", "call", "tail"]), l=labels),
    line("{op} {a}", op=st.sampled_from(["jr", "jalr", "rdcycle", "rdinstreth"]), a=R),
    line("jalr {a}, {i}({b})", a=R, i=small, b=R),
    line("{op} {a}, mscratch, {b}", op=st.sampled_from(["csrrw", "csrrs", "csrrc"]), a=R, b=R),
    line("{op} mepc, {n}", op=st.sampled_from(["csrwi", "csrsi", "csrci", "csrw"]), n=st.integers(0, 31)),
    line("csrr {a}, 0x305", a=R),
    line("lui {a}, %hi({p})\naddi {a}, {a}, %lo({p})", a=R, p=places),
    line("77: auipc {a}, %pcrel_hi({p})\nlw {a}, %pcrel_lo(77b)({a})", a=R, p=labels),
    line("8: addi {a}, {a}, -1\nbnez {a}, 8b\nbeq {a}, x0, 9f\nnop\n9:", a=R),
    line("amoadd.w.aq {a}, {b}, ({c})", a=R, b=R, c=R),
    line("fadd.s fa{n}, ft1, fs2, rtz", n=st.integers(0, 7)),
    line("fmadd.d fa0, f{n}, ft1, fs2", n=st.integers(0, 31)),
    line("li {a}, (({n} + 3) * -2 << 2 | 5) ^ LENGTH", a=R, n=st.integers(0, 200)),
    st.sampled_from([
        "nop", "ret", "fence", "fence rw, w", "fence.i", "ecall", "ebreak", "mret", "wfi", ".balign 16", ".p2align 3",
        ".word l0, . - l1, 'a', -1", "fcvt.w.s a0, fa0", "j .", "beq a0, a1, . + 8", "add a0, a0, a1 ; sub a0, a0, a1",
        "/* over\n lines */ nop # end", "lr.w a0, (a1)", "sc.w a0, a1, (a2)", "OWN = 12\nli a0, OWN",
        "c.addi a0, 5\nc.nop", "lw a0, (a1)",
    ]),
)  # fmt: skip
DATA = r"""
    .section .rodata
    .ascii "a\tb\"\\\101\x41"
message: .asciz "hi, # there; /* no */\n", "more"
    .equ LENGTH, . - message
    .data
    .byte 1, 0xff, -128
    .half 0x1234
    .align 3
buffer: .word message + 4, l2, LENGTH
    .dword 0x123456789abcdef0
    .fill 3, 2, 0x1ff
    .space 5, 0x7f
    .zero 3
    .bss
    .space 100
"""


@needs(AS, LD)
@settings(max_examples=draws(30), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(lines=st.lists(LINES, min_size=3, max_size=60))
def test_random_programs_are_those_of_gnu(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    third = max(len(lines) // 3, 1)
    lines[::third] = [f"l{at}:\n{text}" if at < 3 else text for at, text in enumerate(lines[::third])]
    body = DATA + "    .text\n" + HEAD + "\n".join(lines)
    body += "".join(f"\nl{at}:" for at in range(3) if f"l{at}:" not in body) + "\n"
    ours, theirs = assemble(body, EVERY), gnu(body, tmp_path_factory.mktemp("gnu"))
    assert flat(ours.elf) == flat(theirs)
    assert parse_elf(ours.elf, "a").entry == parse_elf(theirs, "b").entry
    symbols = [{name: one.address for name, one in parse_elf(elf, "x").symbols.items()} for elf in (ours.elf, theirs)]
    assert {name: symbols[1][name] for name in symbols[0] if name in ("l0", "l1", "l2", "buffer", "message")} == {
        name: address for name, address in symbols[0].items() if name in ("l0", "l1", "l2", "buffer", "message")
    }


def test_every_instruction_comes_back_from_its_text() -> None:
    """Also those that GNU as does not know; the texts are objdump's (test_isa_gnu)."""
    chooser = random.Random(1)
    base = 0x8000_0000
    for row in EVERY.rows:
        for _ in range(12):
            word = row.match | chooser.getrandbits(8 * row.length) & ~row.mask & (1 << 8 * row.length) - 1
            one = EVERY.decode(word)
            if one is None or one.row is not row or "unknown" in EVERY.disassemble(word, base):
                continue
            text = EVERY.disassemble(word, base)
            (again,) = assemble(text, EVERY).code
            assert EVERY.disassemble(again.word, base) == text
            if not row.name.startswith(("fence", "c.")):  # where fields that the text leaves out may hold anything
                assert again.word == word, text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nop\nadd a0, a1", "2: add: takes rd, rs1, rs2; 2 operands are given"),
        ("addi a0, a1, 2048", "1: addi a0, a1, 2048: imm cannot be 2048"),
        ("mull a0, a1, a2", "1: mull: rv32im has no such instruction; did you mean mul?"),
        ("mul a0, a1, q7", "1: 'q7' is no register; a0 or x10 is one"),
        ("lw a0, 4[sp]", "1: '[sp]' is no expression"),
        ("beq a0, a1, far\n.space 8192\nfar:", "1: beq a0, a1, far: imm cannot be 8196"),
        ("j nowhere", "1: nowhere: is not defined"),
        ("j 1b\n1:", "1: 1b: is not defined"),
        ("a:\na:", "2: a: is defined already; choose another name"),
        ("li a0, a\na:", "1: a: is not defined here"),
        ("a: li a0, a", "1: a: is an address, and must be a number that is known here"),
        ("li a0, 1 << 40", "1: li 1 << 40: must be a 32-bit number; la loads an address"),
        (".word 1 / 0", "1: division by zero"),
        (".byte 256", "1: .byte 256: 256 does not fit 1 bytes"),
        (".word (1", "1: a parenthesis is not closed"),
        (".word 09", "1: 09 is no octal number"),
        (".word " + "(" * 500 + "1" + ")" * 500, "1: an expression is missing or too deep"),
        (".word 1 << 64", "1: a shift by 64: must be 0..63"),
        (".word 99999999999999999999999999999999999999999999999", "1: a number is beyond 64 bits"),
        (".space 1 << 40", "1: .space 1 << 40: must be 0..16777216 bytes of 0..255"),
        (".space 16777216\n.byte 1", "2: section .text grows beyond 16777216 bytes"),
        (".align 40", "1: .align 40: must align to a power of two up to 65536"),
        (".balign 3", "1: .balign 3: must align to a power of two up to 65536"),
        (".ascii hello", "1: .ascii hello: must be text in double quotes"),
        (".bss\n.word 1", "2: .word: section .bss holds zeros only; put .data before it"),
        (".data\nnop", "2: nop: section .data holds no code; put .text before it"),
        (".section mine", '1: .section mine: needs flags, for example .section mine,"aw"'),
        (".macro m", "1: .macro m: is no directive of this assembler; `pyv-npu docs assembler` lists them"),
        (".option rvc", "1: .option rvc: must be one of norvc, norelax, push, pop, nopic"),
        ("lw a0, %pcrel_lo(a)(a0)\na:", "1: %pcrel_lo(a): there is no auipc with %pcrel_hi at a"),
        ("fence wr, w", "1: 'wr': must be letters of iorw in this order"),
        ("addi a0, a0, %hi(4)", "1: %hi: must be %lo or %pcrel_lo here"),
        ("lui a0, %lo(4)", "1: %lo: must be %hi or %pcrel_hi here"),
        ("lui a0, 1 << 20", "1: 1 << 20: must be 0..1048575"),
        ("@foo", "1: @foo: is no instruction, directive or label; correct it"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, message: str) -> None:
    with pytest.raises(AssemblyError) as error:
        assemble(text, Isa("rv32im"), "own.s")
    assert str(error.value).startswith(f"own.s:{message}") and "\n" not in str(error.value)


@settings(max_examples=draws(300), deadline=None)
@given(text=st.text(st.sampled_from("addilw .,():%\"'\\\n\t#;/*0x1f-+<>&|~=_$@"), max_size=40) | st.text(max_size=20))
def test_any_text_is_assembled_or_refused(text: str) -> None:
    try:
        assemble(text, EVERY)
    except AssemblyError as error:
        assert len(str(error).splitlines()) == 1
