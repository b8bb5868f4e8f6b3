"""Building an instruction set: ISA strings, misa, custom rows, decoding rules, encoding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyv_ext.errors import PyvExtError
from pyv_ext.isa import Isa, OpClass
from pyv_ext.isa.formats import OperandBits
from pyv_ext.protocols import CustomInstruction

FULL = "rv32imac_zicsr_zifencei_zba_zbb_zbc_zbs_zicbom"


def custom(name="mac", match=0x5C00000B, mask=0xFE00707F, syntax="rd,rs1,rs2"):
    return CustomInstruction(name, match, mask, syntax, lambda operands: 0)


@pytest.mark.parametrize(
    ("name", "misa"),
    [
        ("rv32i", 0x4000_0100),
        ("rv32im_zicsr_zifencei", 0x4000_1100),
        ("RV32IMAC_Zicsr", 0x4000_1105),
        ("rv32imacu_zicsr_zifencei_zba_zbb_zbc_zbs", 0x4010_1105),
        ("rv64imacu_zicsr_zifencei_zba_zbb_zbc_zbs", 1 << 63 | 0x10_1105),
    ],
)
def test_misa_has_a_bit_for_each_letter(name, misa):
    assert Isa(name).misa == misa
    assert Isa(name, [custom()]).misa == misa | 1 << 23


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rv64x", "ISA 'rv64x' must be rv64i or rv64g, then of m, a, f, d, c"),
        ("rv64imafc", "extension 'f' goes with rv32 only: remove it, or write rv32"),
        ("rv64gc", "extension 'd' goes with rv32 only|extension 'f' goes with rv32 only"),
        ("rv128i", "must begin with rv32 or rv64"),
        ("rv32mi", "must be rv32i"),
        ("", "must begin with rv32 or rv64"),
        ("rv32imq", "extension 'q' is not among m, a, f, d, c, s, u, zicsr"),
        ("rv32imc_zcf", "extension 'zcf' needs c and f: add them"),
        ("rv32gg", "extension 'g' appears more than once"),
        ("rv32im_zfoo", "extension 'zfoo' is not among"),
        ("rv32imm", "extension 'm' appears more than once: name it once"),
    ],
)
def test_a_bad_isa_string_is_refused_with_what_is_known(name, message):
    with pytest.raises(PyvExtError, match=message):
        Isa(name)


def test_only_the_named_extensions_decode():
    mul, lr, clz, csrrw = 0x02A5_8533, 0x1005_252F, 0x6005_1513, 0x3000_1073
    for name, legal in (
        ("rv32i", []),
        ("rv32im", [mul]),
        ("rv32ia_zbb", [lr, clz]),
        ("rv32im_zicsr", [mul, csrrw]),
    ):
        assert [word for word in (mul, lr, clz, csrrw) if Isa(name).decode(word)] == legal
    assert Isa("rv32i").decode(0x0001) is None
    assert Isa("rv32i").decode(0x3020_0073).row.op_class is OpClass.XRET


def test_custom_rows_decode_strictly_and_disassemble():
    isa = Isa("rv32im", [custom(), custom("wait", 0x100B, 0x707F, "rd,rs1,imm"), custom("bar", 0x200B, 0xFFF7F, "imm")])
    word = 0x5C00000B | 5 << 7 | 6 << 15 | 7 << 20
    assert isa.disassemble(word, 0, numeric=True) == "mac\tx5,x6,x7"
    assert isa.disassemble(0xFFF3_128B, 0) == "wait\tt0,t1,-1"
    assert isa.disassemble(0x0102_200B, 0).startswith(".4byte")
    assert isa.decode(word ^ 1 << 25) is None
    assert isa.decode(0x300B) is None
    assert Isa("rv32im").decode(word) is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([custom(), custom("other", 0x5C00000B, 0xFE00707F)], r"custom instruction other .* overlaps mac"),
        ([custom("wide", 0xB, 0x7F), custom()], "custom instruction mac .* overlaps wide"),
        ([custom("add2", 0x33, 0xFE00707F)], "custom instruction add2 .* overlaps add "),
        ([custom("mac"), custom("mac", 0x100B, 0x707F)], "custom instruction mac .* overlaps mac"),
        ([custom(match=0x5C00010B)], "must fix all seven opcode bits of a 32-bit word and no bit outside the mask"),
        ([custom(match=0x5C000001, mask=0xFE007003)], "must fix all seven opcode bits"),
        ([custom(match=0x5C000009)], "must fix all seven opcode bits"),
        ([custom(syntax="rd,rs3")], "operand 'rs3' is none of rd, rs1, rs2, imm"),
    ],
)
def test_bad_custom_rows_are_refused(rows, message):
    with pytest.raises(PyvExtError, match=message):
        Isa("rv32im", rows)


def test_reserved_fields_of_fences_are_ignored():
    isa = Isa("rv32i_zifencei")
    for word in (0xFFFF_8F8F, 0x0FF0_000F, 0x8330_000F):
        assert isa.decode(word).row.op_class is OpClass.FENCE
    assert isa.decode(0xFFFF_9F8F).row.op_class is OpClass.FENCE_I


@pytest.mark.parametrize("word", [0, 0xFFFF_FFFF, 0x0000_0004, 0x6101, 0x6081, 0x4002, 0x8002, 0x9C01, 0x1002])
def test_reserved_words_are_illegal(word):
    assert Isa(FULL).decode(word) is None


def test_a_compressed_word_ignores_the_bits_above_it():
    instruction = Isa(FULL).decode(0xFFFF_0505)
    assert (instruction.name, instruction.word, instruction.length) == ("c.addi", 0x0505, 2)


@pytest.mark.parametrize("row", Isa(FULL).rows, ids=lambda row: row.name)
def test_every_row_decodes_to_what_was_encoded(row):
    isa = Isa(FULL)
    chosen = {}
    for field in row.format.written:
        bits = getattr(row.format, field)
        if bits is not None:
            candidates = [
                v for v in (9, 4, 1, 16, 32, 4096, 0, 2, 30) if bits.fits(v) and (v or field not in row.nonzero)
            ]
            chosen[field] = candidates[0]
    instruction = isa.decode(isa.encode(row.name, **chosen))
    assert instruction.row is row
    assert {field: getattr(instruction, field) for field in chosen} == chosen


@pytest.mark.parametrize(
    ("name", "operands", "message"),
    [
        ("addi", {"imm": 2048}, "addi: imm cannot be 2048"),
        ("beq", {"imm": 3}, "beq: imm cannot be 3"),
        ("add", {"rd": 32}, "add: rd cannot be 32"),
        ("c.lw", {"rd": 1, "rs1": 8}, "c.lw: rd cannot be 1"),
        ("c.lwsp", {"rd": 0, "rs1": 2}, "c.lwsp: rd cannot be 0"),
        ("frobnicate", {}, "unknown instruction 'frobnicate'"),
    ],
)
def test_operands_that_do_not_fit_are_refused(name, operands, message):
    with pytest.raises(PyvExtError, match=message):
        Isa(FULL).encode(name, **operands)


@given(st.integers(-(1 << 12), (1 << 12) - 1).map(lambda n: 2 * n))
def test_scattered_bits_come_back(value):
    bits = OperandBits("12@31 11@7 10:5@25 4:1@8", signed=True)
    assert bits.fits(value) == (-4096 <= value < 4096)
    if bits.fits(value):
        assert bits.extract(bits.insert(value)) == value
