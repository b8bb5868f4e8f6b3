"""The instruction table against GNU as and objdump: every row, both directions."""

import random
import re

import pytest
from gnu import MARCHES, ORIGIN, assemble, needs_gnu, objdump, words

from pyv_ext.isa import InstructionDef, Isa
from pyv_ext.isa.csr_names import NAMES

ISAS = [Isa(march) for march in MARCHES.values()]
SAMPLES = 12
pytestmark = needs_gnu


@pytest.fixture(params=ISAS, ids=[f"rv{isa.xlen}" for isa in ISAS])
def isa(request):
    return request.param


def sample(isa: Isa, row: InstructionDef, chance: random.Random) -> int:
    """A word of the row with random operands."""
    while True:
        word = row.match | chance.getrandbits(8 * row.length) & ~row.mask
        instruction = isa.decode(word)
        if (
            instruction is not None
            and instruction.row is row
            and (not row.format.csr or instruction.csr in NAMES)
            and not _unknown_to_gnu(isa, word)
            and not (row.length == 2 and "hex" in row.format.text and instruction.imm == 0)  # a hint, see below
        ):
            return word


def _unknown_to_gnu(isa: Isa, word: int) -> bool:
    """A conversion that is always exact, with a rounding mode all the same: binutils 2.40 has no text for it."""
    instruction = isa.decode(word)
    return instruction is not None and "mode!" in instruction.row.format.text and instruction.imm != 0


def samples(isa: Isa) -> list[int]:
    chance = random.Random(1)
    rows = [row for row in isa.rows if row.name not in ("fence", "fence.i")]
    fences = [isa.encode("fence", imm=imm) for imm in range(256)] + [isa.encode("fence.i")]
    return fences + [sample(isa, row, chance) for row in rows for _ in range(SAMPLES)]


def listing(isa: Isa, codes: list[int], *, numeric: bool) -> list[tuple[int, bytes, str]]:
    found, pc = [], ORIGIN
    for word in codes:
        code = words([word])
        found.append((pc, code, isa.disassemble(word, pc, numeric=numeric)))
        pc += len(code)
    return found


@pytest.mark.parametrize("numeric", [True, False])
def test_objdump_prints_the_same_text(tmp_path, isa, numeric):
    codes = samples(isa)
    assert listing(isa, codes, numeric=numeric) == objdump(words(codes), tmp_path, isa.xlen, numeric=numeric)


@pytest.mark.parametrize("numeric", [True, False])
def test_gnu_as_makes_the_same_word_of_our_text(tmp_path, isa, numeric):
    unspeakable = ("unknown", "lui")  # an empty fence set has no syntax; operands of lui are checked below
    ours = [
        item for item in listing(isa, samples(isa), numeric=numeric) if not any(word in item[2] for word in unspeakable)
    ]
    lines = [re.sub(r"0x[0-9a-f]+$", lambda m, pc=pc: f".+{int(m[0], 16) - pc}", text) if _jumps(isa, text) else text
             for pc, _, text in ours]  # fmt: skip
    assert assemble(lines, tmp_path, isa.xlen) == b"".join(code for _, code, _ in ours)


def _jumps(isa: Isa, text: str) -> bool:
    row = isa.by_name[text.split("\t")[0]]
    return "target" in row.format.text


def test_upper_immediates_assemble_to_the_same_word(tmp_path, isa):
    chance = random.Random(2)
    codes = [sample(isa, isa.by_name[name], chance) for name in ("lui", "c.lui") for _ in range(50)]
    lines = [text for _, _, text in listing(isa, codes, numeric=True)]
    assert assemble(lines, tmp_path, isa.xlen) == words(codes)


def test_every_compressed_word_is_legal_and_reads_as_objdump_says(tmp_path, isa):
    codes = [word for word in range(1 << 16) if word & 3 != 3]
    theirs = objdump(words(codes), tmp_path, isa.xlen, numeric=True)
    ours = listing(isa, codes, numeric=True)
    assert len(theirs) == len(ours)
    for mine, other in zip(ours, theirs, strict=True):
        if other[2] in ("c.unimp", "c.addi16sp\tx2,0") or _long_shift(isa, other[2]):  # reserved
            assert mine[2].startswith(".2byte"), other
        elif not other[2].split("\t")[0].endswith("64"):  # shifts by 0 are hints: objdump has their RV128 names
            assert mine == other


def test_shifts_by_zero_are_hints_and_execute(tmp_path, isa):
    for word in (0x0082, 0x8001, 0x8401):  # c.slli ra,0; c.srli s0,0; c.srai s0,0
        assert isa.decode(word) is not None
    assert isa.decode(0x0000) is None


def test_random_words_are_legal_where_objdump_knows_them(tmp_path, isa):
    chance = random.Random(3)
    rows = [row for row in isa.rows if row.length == 4 and row.name not in ("fence", "fence.i")]
    codes = []
    for _ in range(8000):  # near misses: words of a row with one bit flipped, and words of its opcode
        row = chance.choice(rows)
        codes.append(sample(isa, row, chance) ^ (1 << chance.randrange(7, 32)))
        codes.append(chance.getrandbits(32) & ~0x7F | row.match & 0x7F)
    fences = (0x000F, 0x100F)  # with reserved fields they execute as fences, and objdump does not know them
    codes = [word for word in codes if word & 0x707F not in fences and not _names_csr(word)]
    theirs = objdump(words(codes), tmp_path, isa.xlen, numeric=True)
    for mine, other in zip(listing(isa, codes, numeric=True), theirs, strict=True):
        if _unknown_to_gnu(isa, int.from_bytes(other[1], "little")):
            assert other[2].startswith(".4byte")
        elif other[2].endswith(",unknown"):  # a rounding mode that is reserved
            assert mine[2].startswith(".4byte"), other
        elif other[2].split("\t")[0] in isa.by_name and not _long_shift(isa, other[2]):
            assert mine == other
        else:  # objdump knows words of supervisor and debug mode whatever -march says
            assert mine[2].startswith(".4byte"), other


def _names_csr(word: int) -> bool:
    return word & 0x7F == 0x73 and word >> 12 & 3 != 0


def _long_shift(isa: Isa, text: str) -> bool:
    """A shift of 32 bits by 32 or more, which is reserved, and objdump prints all the same."""
    row = isa.by_name.get(text.split("\t")[0])
    if row is None or "hex" not in row.format.text:
        return False
    return bool(row.mask & row.format.imm.insert(32)) and int(text.split(",")[-1], 16) >= 32


def test_every_csr_has_the_name_that_objdump_prints(tmp_path, isa):
    codes = [isa.encode("csrrs", rd=1, rs1=2, csr=address) for address in range(1 << 12)]
    theirs = objdump(words(codes), tmp_path, isa.xlen, numeric=True)
    for address, (_, _, text) in enumerate(theirs):
        name = text.split(",")[1]
        if address in NAMES:
            assert name == NAMES[address]
        else:
            assert f"{address:#x}" in isa.disassemble(codes[address], 0)
