import functools
import re
import struct
from pathlib import Path

import device_oracles as oracles
import pytest
from device_rig import RAM, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.elf import ElfError, ElfNote, Program, load, parse_elf, read_elf

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
    .globl _start, table, hidden_entry
_start:
    li a0, 1
.Lhere:
    j .Lhere
    .type work, @function
    .globl alias, work
alias:
work:
    nop
    nop
    ret
    .size work, . - work
    .type inner, @function
inner:
    ret
    .size inner, . - inner
    .data
    .type table, @object
table: .word 1, 2, 3
    .size table, . - table
    .bss
    .globl space
space: .space 4096
    .section .note.pyvnpu, "a", @note
    .word 7, 8, 1
    .asciz "PyVNPU"
    .align 2
    .word 0x11223344, 0x55667788
    .word 4, 2, 0x80000001
    .asciz "abc"
    .byte 9, 8
    .align 2
"""


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return oracles.build(tmp_path_factory.mktemp("elf"), PROGRAM)


def little(**changes: int | bytes) -> bytes:
    """The smallest good file, 16 bytes of code at RAM; `changes` replace fields of its headers."""
    f: dict[str, int | bytes] = {
        "ident": b"\x7fELF\1\1\1",
        "type": 2,
        "machine": 243,
        "entry": RAM,
        "phoff": 52,
        "phnum": 1,
    }
    f |= {"p_type": 1, "p_paddr": RAM, "p_filesz": 16, "p_memsz": 32, "p_flags": 5}
    f |= changes
    header = struct.pack(
        "<16sHHIIIIIHHHHHH",
        *(f["ident"], f["type"], f["machine"], 1, f["entry"], f["phoff"], 0, 0, 52, 32, f["phnum"], 40, 0, 0),
    )
    segment = struct.pack(
        "<8I", *(f["p_type"], 84, f["p_paddr"], f["p_paddr"], f["p_filesz"], f["p_memsz"], f["p_flags"], 4)
    )
    return header + segment + bytes(range(16))


def test_the_smallest_file() -> None:
    program = parse_elf(little(), "little")
    assert program.entry == RAM
    (segment,) = program.segments
    assert (segment.address, segment.data, segment.size, segment.executable) == (RAM, bytes(range(16)), 32, True)
    assert (program.symbols, program.functions, program.notes) == ({}, (), ())


def test_a_segment_may_end_with_the_address_space() -> None:
    assert parse_elf(little(p_paddr=0xFFFF_FFE0, entry=0xFFFF_FFE0), "little").segments[0].end == 1 << 32


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x: starts with nothing, an ELF file with 7f454c46: give an ELF file"),
        (b"hello", "x: starts with 68656c6c, an ELF file with 7f454c46: give an ELF file"),
        (
            little(ident=b"\x7fELF\3\1\1"),
            "x: class 3, an ELF file has one of 1, 2: rebuild it",
        ),
        (
            little(ident=b"\x7fELF\1\2\1", type=0x200, machine=243 << 8, phnum=0),
            "x: big-endian, this hart is little-endian: build with -mlittle-endian",
        ),
        (little(machine=40), "x: machine 40, expected 243 (RISC-V): build with a RISC-V compiler"),
        (little(type=1), "x: type ET_REL, expected ET_EXEC: link it with -static and without -pie or -r"),
        (little(type=3), "x: type ET_DYN, expected ET_EXEC: link it with -static and without -pie or -r"),
        (little()[:90], "x: truncated: segment at 0x80000000 has 6 of 16 bytes: copy it again"),
        (little(phnum=0), "x: nothing to load: link it into an executable with code"),
        (little(p_type=2), "x: nothing to load: link it into an executable with code"),
        (
            little(entry=RAM + 32),
            "x: entry 0x80000020 lies in no executable segment: set it with ENTRY(symbol) in the linker script",
        ),
        (
            little(p_flags=6),
            "x: entry 0x80000000 lies in no executable segment: set it with ENTRY(symbol) in the linker script",
        ),
        (
            little(p_memsz=8),
            "x: segment at 0x80000000 with 16 bytes in the file and 8 in memory: the file's must fit into the memory's "
            "and these into 32-bit addresses: rebuild it",
        ),
        (
            little(p_paddr=0xFFFF_FFF0),
            "x: segment at 0xfffffff0 with 16 bytes in the file and 32 in memory: the file's must fit into the "
            "memory's and these into 32-bit addresses: rebuild it",
        ),
    ],
)
def test_what_is_refused_and_how(data: bytes, message: str) -> None:
    with pytest.raises(ElfError) as refusal:
        parse_elf(data, "x")
    assert str(refusal.value) == message


@pytest.mark.parametrize("size", [4, 20, 51, 60])
def test_a_cut_header_is_one_line(size: int) -> None:
    with pytest.raises(ElfError, match=r"^x: truncated or damaged ELF file \(.+\): rebuild or copy it again$"):
        parse_elf(little()[:size], "x")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ElfError, match="No such file or directory: give the path of a RISC-V ELF executable"):
        read_elf(tmp_path / "nothing.elf")
    with pytest.raises(ElfError, match="Is a directory"):
        read_elf(tmp_path)


# -- loading -------------------------------------------------------------------------------------------------------


def test_loading_writes_data_and_clears_the_rest() -> None:
    rig = Rig()
    rig.bus.poke(RAM, b"\xff" * 64)
    load(parse_elf(little(), "x"), rig.bus)
    assert rig.bus.peek(RAM, 40) == bytes(range(16)) + bytes(16) + b"\xff" * 8


@pytest.mark.parametrize("address", [0x10_0000, 0x1000_0000, RAM - 16, RAM + 0x10_0000 - 16])
def test_a_segment_outside_memory_is_refused(address: int) -> None:
    program = parse_elf(little(p_paddr=address, entry=address), "x")
    with pytest.raises(ElfError) as refusal:
        load(program, Rig().bus)
    assert str(refusal.value) == (
        f"x: segment {address:#x}..{address + 32:#x} lies outside writable memory: link it into RAM or enlarge the RAM"
    )


# -- what GNU binutils say --------------------------------------------------------------------------------------------


def test_symbols_equal_nm(executable: Path) -> None:
    program = read_elf(executable)
    theirs = {}
    for line in oracles.gnu("nm", "--print-size", "--defined-only", executable).splitlines():
        found = re.fullmatch(r"(\w+) (?:(\w+) )?\w (\S+)", line)
        assert found
        address, size, name = found.groups()
        theirs[name] = (int(address, 16), int(size or "0", 16))
    assert {name: (symbol.address, symbol.size) for name, symbol in program.symbols.items()} == theirs
    assert {"_start", "work", "inner", "table", "space", "alias"} <= set(theirs)


def test_segments_and_entry_equal_readelf(executable: Path) -> None:
    program = read_elf(executable)
    listing = oracles.gnu("readelf", "--wide", "--segments", executable)
    rows = re.findall(r"LOAD\s+0x\w+ 0x\w+ (0x\w+) (0x\w+) (0x\w+) (.{3})", listing)
    theirs = [(int(address, 16), int(data, 16), int(size, 16), "E" in flags) for address, data, size, flags in rows]
    assert [(s.address, len(s.data), s.size, s.executable) for s in program.segments] == theirs
    entry = re.search(r"Entry point (0x\w+)", listing)
    assert entry
    assert program.entry == int(entry[1], 16)


def test_a_segment_with_code_is_executable_whatever_its_flags(tmp_path: Path) -> None:
    script = tmp_path / "flags.ld"
    script.write_text(
        "PHDRS { text PT_LOAD FLAGS(0); data PT_LOAD FLAGS(6); }\n"
        "SECTIONS { . = 0x80000000; .text : { *(.text) } :text . = 0x80001000; .data : { *(.data) } :data }\n"
    )
    program = read_elf(oracles.build(tmp_path, ".globl _start\n_start: j .\n.data\n.word 1\n", f"-Wl,-T{script}"))
    assert [segment.executable for segment in program.segments] == [True, False]


def test_notes_equal_readelf(executable: Path) -> None:
    notes = read_elf(executable).notes
    assert notes == (
        ElfNote("PyVNPU", 1, bytes.fromhex("4433221188776655")),
        ElfNote("abc", 0x8000_0001, b"\x09\x08"),
    )
    listing = oracles.gnu("readelf", "--wide", "--notes", executable)
    theirs = re.findall(r"^\s+(PyVNPU|abc)\s+0x(\w+)", listing, re.MULTILINE)
    assert [(note.owner, len(note.desc)) for note in notes] == [(owner, int(size, 16)) for owner, size in theirs]


def test_addresses_to_functions(executable: Path) -> None:
    program = read_elf(executable)
    start, work, inner = (program.symbols[name].address for name in ("_start", "work", "inner"))
    names = {
        address: found and found.name
        for address in range(start - 4, inner + 8)
        if (found := program.function_at(address)) or True
    }
    assert names[start - 4] is None
    assert {names[address] for address in range(start, work)} == {"_start"}
    assert {names[address] for address in range(work, inner)} == {"work"}, "the function, not its untyped alias"
    assert names[inner] == "inner"
    assert names[inner + 4] is None
    assert program.function_at(program.symbols["table"].address) is None


def test_a_static_symbol_gives_way_to_a_global_of_its_name(tmp_path: Path) -> None:
    first = ".globl _start, twice\n_start: nop\ntwice: nop\n"
    second = tmp_path / "second.S"
    second.write_text(".globl other\nother: nop\ntwice: nop\n")
    program = read_elf(oracles.build(tmp_path, first, str(second)))
    assert program.symbols["twice"].address == program.symbols["_start"].address + 4


@pytest.mark.parametrize("path", sorted((ROOT / "firmware" / "prebuilt").glob("*.elf")), ids=lambda path: path.stem)
def test_shipped_files_equal_readelf(path: Path) -> None:
    program = read_elf(path)
    symbols, code = {}, {}
    for line in oracles.gnu("readelf", "--wide", "--symbols", path).splitlines():
        found = re.fullmatch(r"\s+\d+: (\w{8})\s+(\w+) (\w+)\s+(\w+)\s+\w+\s+(\w+) (\S+)", line)
        if found and found[5] != "UND" and found[3] not in ("FILE", "SECTION") and not found[6].startswith((".L", "$")):
            address, size = int(found[1], 16), int(found[2], 0)
            if found[4] == "GLOBAL" or found[6] not in symbols:
                symbols[found[6]] = (address, size)
            if found[3] == "FUNC":
                code[address] = size
    assert {name: (symbol.address, symbol.size) for name, symbol in program.symbols.items()} == symbols
    assert {f.address: f.size for f in program.functions if f.address in code} == code
    attributes = oracles.gnu("readelf", "--arch-specific", path)
    architecture = re.search(r'Tag_RISCV_arch: "(\w+)"', attributes)
    assert architecture
    assert "_".join(program.extensions) == re.sub(r"\d+p\d+(?=_|$)", "", architecture[1].removeprefix("rv32"))
    notes = oracles.gnu("readelf", "--wide", "--notes", path)
    assert [len(note.desc) for note in program.notes] == [
        int(size, 16) for size in re.findall(r"^  \S+\s+0x(\w{8})\t", notes, re.MULTILINE)
    ]


# -- damage ------------------------------------------------------------------------------------------------------------


def read_or_refuse(data: bytes) -> None:
    try:
        program = parse_elf(data, "x")
    except ElfError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("x: ")
    else:
        assert isinstance(program, Program)
        for address in (0, program.entry, 0xFFFF_FFFF):
            program.function_at(address)
        try:
            load(program, Rig().bus)
        except ElfError as error:
            assert "\n" not in str(error)


@functools.cache
def content(path: Path) -> bytes:
    return path.read_bytes()


@settings(max_examples=draws(300), deadline=None)
@given(data=st.data())
def test_no_damage_gives_anything_but_a_program_or_an_error(executable: Path, data: st.DataObject) -> None:
    image = bytearray(content(executable))
    flips = st.tuples(st.integers(0, len(image) - 1), st.integers(0, 255))
    for offset, value in data.draw(st.lists(flips, max_size=8)):
        image[offset] = value
    headers = st.tuples(st.integers(16, 52 + 3 * 32 - 1), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    for offset, value in data.draw(st.lists(headers, max_size=3)):
        image[offset] = value
    read_or_refuse(bytes(image[: data.draw(st.one_of(st.just(len(image)), st.integers(0, len(image))))]))


def overlapping(count: int, kind: int, content: bytes) -> bytes:
    """The smallest file with `count` sections of a type, all of the same bytes; names of symbols are in the first."""
    data = little() + b"a\0" + content
    names, at = 100, 102
    rows = [struct.pack("<10I", 0, 3, 0, 0, names, 2, 0, 0, 1, 0)]
    rows += [struct.pack("<10I", 0, kind, 0, 0, at, len(content), 0, 0, 1, 0)] * count
    image = bytearray(data + b"".join(rows))
    struct.pack_into("<I", image, 32, len(data))
    struct.pack_into("<2H", image, 46, 40, len(rows))
    return bytes(image)


@pytest.mark.parametrize(
    ("kind", "content", "limit"),
    [(2, struct.pack("<IIIBBH", 0, RAM, 0, 0x12, 0, 1) * 1000, 1 << 22), (7, bytes(12) * 1000, 1 << 16)],
)
def test_tables_that_lie_over_each_other_are_read_as_often_as_their_bytes_allow(
    kind: int, content: bytes, limit: int
) -> None:
    """A file of a megabyte could otherwise say that it has a billion symbols or notes."""
    parse_elf(overlapping(limit // len(content), kind, content), "x")
    with pytest.raises(ElfError, match=f"sections of type {kind:#x} of [0-9]* bytes, at most {limit}"):
        parse_elf(overlapping(limit // len(content) + 1, kind, content), "x")


def segments_and_sections(segments: int, sections: int) -> bytes:
    image = bytearray(overlapping(sections - 1, 1, b""))
    struct.pack_into("<I", image, 28, len(image))
    struct.pack_into("<H", image, 44, segments)
    return bytes(image) + image[52:84] * segments


def test_each_segment_is_looked_for_among_the_sections_and_the_pairs_have_a_limit() -> None:
    """A compiled model has a segment for each of its constants, hundreds of them, and few sections."""
    assert len(parse_elf(segments_and_sections(2000, 5), "x").segments) == 2000
    parse_elf(segments_and_sections(256, 16384), "x")
    with pytest.raises(ElfError, match="a header table of 257 rows, at most 256"):
        parse_elf(segments_and_sections(257, 16384), "x")


def test_the_memory_of_all_segments_has_a_limit() -> None:
    """Segments that lie over each other would otherwise be cleared as often as there are rows."""
    image = bytearray(segments_and_sections(5, 1))
    for row in range(5):
        struct.pack_into("<I", image, len(image) - 32 * row - 12, 1 << 30)
    with pytest.raises(ElfError, match="segments of 5368709120 bytes of memory, at most 4294967296"):
        parse_elf(bytes(image), "x")


def test_header_tables_have_a_limit() -> None:
    with pytest.raises(ElfError, match="a header table of 16385 rows, at most 16384"):
        parse_elf(overlapping(16384, 0, b""), "x")


@pytest.mark.parametrize("stripped", [False, True])
def test_headers_that_a_linker_loads_before_the_program_need_no_memory(tmp_path: Path, stripped: bool) -> None:
    """Plain -Ttext=0x80000000: the first segment begins a page lower with the headers of the file; QEMU runs it."""
    text, image = tmp_path / "a.S", tmp_path / "a.elf"
    text.write_text(".globl _start\n_start: li t0, 0x100000; li t1, 0x5555; sw t1, 0(t0); j .\n.data\n.word 7\n")
    flags = ("-march=rv32im", "-mabi=ilp32", "-nostdlib", "-nostartfiles", f"-Wl,-Ttext={RAM:#x}")
    oracles.gnu("gcc", *flags, "-o", image, text)
    data = bytearray(image.read_bytes())
    if stripped:
        data[0x20:0x24] = data[0x30:0x34] = bytes(4)  # e_shoff, e_shnum and e_shstrndx
    program = parse_elf(bytes(data), "a.elf")
    first = program.segments[0]
    assert first.address < RAM and first.address + first.head <= RAM
    rig = Rig()
    load(program, rig.bus)
    assert rig.bus.peek(RAM, 4) == first.data[RAM - first.address :][:4]


def test_a_program_that_begins_below_memory_is_refused(tmp_path: Path) -> None:
    image = oracles.build(tmp_path, PROGRAM, f"-Wl,-Ttext={RAM - 64:#x}")
    with pytest.raises(ElfError, match="lies outside writable memory"):
        load(read_elf(image), Rig().bus)
