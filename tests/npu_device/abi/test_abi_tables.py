"""The checks of the ABI's tables refuse what would contradict itself, and descriptors survive a round trip."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_device.abi import descriptor, instructions, memory_map, opcodes, registers
from npu_device.abi.descriptor import PARTS, WORDS, Descriptor, Part, Word, check_layout, check_parts
from npu_device.abi.errors import AbiError, ReturnCode, TicketError
from npu_device.abi.extended import Extended, alignments
from npu_device.abi.instructions import CSRS, CUSTOM_INSTRUCTIONS, check_instructions
from npu_device.abi.kv_block import KvHalf
from npu_device.abi.memory_map import MEMORY_MAP, check_map
from npu_device.abi.registers import REGISTERS, UNITS, Bits, check_registers

WINDOW = memory_map.NPU_WINDOW


def _word(name: str, offset: int, size: int = 4) -> Word:
    return Word(name, offset, size, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((_word("a", 0), _word("b", 8)), "field b at 0x8: must start at 0x4"),
        ((_word("a", 0), _word("b", 2, 2)), "field b at 0x2: must start at 0x4"),
        ((_word("a", 0), _word("b", 4, 8)), "field b at 4: must be aligned to its 8 bytes"),
        ((_word("a", 0),), "field a ends at 0x4: must end at 0x8"),
        ((_word("a", 0), _word("a", 4)), "field a: declared twice, names must be unique"),
    ],
)
def test_layout_refuses_gap_overlap_misalignment_size_and_duplicate(words: tuple[Word, ...], message: str) -> None:
    with pytest.raises(AbiError, match=message):
        check_layout(words, 8)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((Part("a", "w", 0, 16, ""), Part("b", "w", 15, 17, "")), "bits of w b at 0xf: must start at 0x10"),
        ((Part("a", "w", 0, 16, ""), Part("b", "w", 17, 15, "")), "bits of w b at 0x11: must start at 0x10"),
        ((Part("a", "w", 0, 31, ""),), "bits of w a ends at 0x1f: must end at 0x20"),
        ((Part("a", "x", 0, 32, ""),), "part of unknown word x"),
    ],
)
def test_parts_refuse_overlap_gap_and_unknown_word(parts: tuple[Part, ...], message: str) -> None:
    with pytest.raises(AbiError, match=message):
        check_parts(parts, (_word("w", 0),))


@pytest.mark.parametrize("index", range(len(WORDS)))
def test_no_word_of_the_descriptor_can_move(index: int) -> None:
    moved = WORDS[index]._replace(offset=WORDS[index].offset + 4)
    with pytest.raises(AbiError):
        check_layout((*WORDS[:index], moved, *WORDS[index + 1 :]), descriptor.DESCRIPTOR_SIZE)


def test_registers_refuse_overlap_duplicate_window_and_fields() -> None:
    first = REGISTERS[0]
    cases = {
        "TWIN at 0x0: must start at 0x4 or above": (*REGISTERS, first._replace(name="TWIN")),
        "must start at": (*REGISTERS, first._replace(name="TWIN", offset=UNITS[0].offset)),
        "declared twice": (*REGISTERS, first._replace(offset=0xF00)),
        "4-byte aligned": (*REGISTERS, first._replace(name="TWIN", offset=0xF02)),
        "TWIN ends at 0x10004: must end at 0x10000 or below": (*REGISTERS, first._replace(name="TWIN", offset=WINDOW)),
        "QUEUE_BASE_LO B at 0x7: must start": (first._replace(fields=(Bits("A", 0, 8, ""), Bits("B", 7, 1, ""))),),
        "QUEUE_BASE_LO A ends at 0x21": (first._replace(fields=(Bits("A", 30, 3, ""),)),),
    }
    for message, rows in cases.items():
        with pytest.raises(AbiError, match=message):
            check_registers(rows, UNITS, WINDOW)


def test_instructions_refuse_a_shared_word_caps_bit_or_csr() -> None:
    enqcmd, twait, *_ = CUSTOM_INSTRUCTIONS
    with pytest.raises(AbiError, match="ENQCMD_T and TWAIT share a word"):
        check_instructions((enqcmd, twait._replace(funct3=enqcmd.funct3)), ())
    with pytest.raises(AbiError, match="both use bit 0 of CAPS"):
        check_instructions((enqcmd, twait._replace(caps_bit=0)), ())
    with pytest.raises(AbiError, match="must be unique"):
        check_instructions((), (CSRS[0], CSRS[1]._replace(address=CSRS[0].address)))


def test_every_csr_mirrors_a_register() -> None:
    names = {row.name for row in REGISTERS}
    assert [csr.register for csr in CSRS if csr.register not in names] == []


def test_memory_map_refuses_overlap_and_duplicate() -> None:
    spm = next(entry for entry in MEMORY_MAP if entry.name == "SPM")
    with pytest.raises(AbiError, match="SPM at 0x4000f000: must start at 0x40010000"):
        check_map(tuple(e._replace(base=0x4000_F000) if e is spm else e for e in MEMORY_MAP))
    with pytest.raises(AbiError, match="names"):
        check_map(tuple(e._replace(name="NPU") if e is spm else e for e in MEMORY_MAP))


def test_codes_are_those_of_the_abi() -> None:
    assert {c.name: c.value for c in ReturnCode} == {"ENOENT": 2, "EBUSY": 16, "EINVAL": 22, "ETIMEDOUT": 110}
    assert [e.value for e in TicketError] == list(range(256, 256 + len(TicketError)))
    assert max(TicketError) < 512
    assert [op.value for op in opcodes.Opcode] == list(range(19))


def test_encodings_are_those_of_the_abi() -> None:
    words = {row.name: instructions.match_mask(row)[0] for row in CUSTOM_INSTRUCTIONS}
    assert words == {"ENQCMD_T": 0x5C00_000B, "TWAIT": 0x0000_100B, "TBAR": 0x0000_200B, "TSTAT": 0x0000_300B}


@given(st.binary(min_size=64, max_size=64))
def test_unpack_and_pack_are_inverse(data: bytes) -> None:
    assert Descriptor.unpack(data).pack() == data


@given(st.sampled_from(PARTS), st.data())
def test_a_part_lands_at_its_bits(part: Part, data: st.DataObject) -> None:
    value = data.draw(st.integers(0, (1 << part.width) - 1))
    word = next(w for w in WORDS if w.name == part.word)
    name = part.name.removesuffix("_high")
    packed = Descriptor().with_(**{name: value << 2 if name != part.name else value}).pack()
    assert int.from_bytes(packed, "little") == value << (8 * word.offset + part.low)


@pytest.mark.parametrize("part", [part for part in PARTS if part.name != "cluster_high"], ids=lambda part: part.name)
def test_a_value_that_does_not_fit_is_refused(part: Part) -> None:
    width = 4 if part.name == "cluster" else part.width
    with pytest.raises(AbiError, match=f"field {part.name}: {1 << width} does not fit {width}"):
        Descriptor().with_(**{part.name: 1 << width}).pack()


def test_registers_are_those_of_the_abi() -> None:
    offsets = {row.name: row.offset for row in registers.CONTROL}
    assert offsets == {
        "QUEUE_BASE_LO": 0x00, "QUEUE_BASE_HI": 0x04, "QUEUE_SIZE": 0x08, "CTRL": 0x0C, "QUEUE_HEAD": 0x10,
        "QUEUE_TAIL": 0x14, "ERROR_TICKET": 0x18, "ERROR_CODE": 0x1C, "DOORBELL": 0x20, "IRQ_STATUS": 0x24,
        "IRQ_MASK": 0x28, "IRQ_ACK": 0x2C, "COMPLETED": 0x30, "TICKET_SEL": 0x34, "TICKET_STATUS": 0x38,
        "ID_VERSION": 0x3C,
    }  # fmt: skip


def test_words_about_keys_are_those_of_the_abi() -> None:
    assert KvHalf().pack().hex() == "0100" + "00" * 10 + "4000" + "00" * 18
    half = KvHalf((1, 2, 3, 4), 7, 1, 64)
    assert KvHalf.unpack(half.pack()) == half


def test_alignments_of_operands_are_read_as_they_were_written() -> None:
    sizes = {"in0": 64, "in1": 1, "out": 4096, "scale": 1 << 29}
    assert Extended(alignments=alignments(sizes)).aligned() == sizes
    assert Extended().aligned() == {}
