"""Native code decodes as the instruction table says, by which Python decodes; and what it has decoded is known."""

import random
from pathlib import Path

import engine_choice
import pytest
from hart_rig import RAM, Rig, assemble
from hypothesis import given
from hypothesis import strategies as st

from pyv_ext.bus.memory import PAGE
from pyv_ext.engines.fast import engine, entries, space
from pyv_ext.engines.fast.blocks import TRANSLATED, targets_misaligned
from pyv_ext.engines.persistent import profile_image
from pyv_ext.isa import OpClass
from pyv_ext.machine.state import LINE

ISAS = ("rv32i", "rv32im_zicsr_zifencei", "rv32imac_zicsr_zifencei", "rv32imafdcu_zicsr_zifencei_zba_zbb_zbs")


@pytest.fixture(autouse=True)
def native_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "NAME", "fast")
    monkeypatch.setattr(engine, "WARM_UP", 0)
    monkeypatch.setattr(profile_image, "MAX_STORES", 0)


def made(isa: str = ISAS[1], program: str = "") -> tuple[Rig, space.TranslationCache]:
    """A hart and its native code, which has executed nothing yet."""
    rig = Rig(program, isa=isa)
    return rig, rig.engine._current_native().spaces[None]


def is_plain(rig: Rig, word: int) -> bool:
    """Whether native code decodes it, where it may."""
    instruction = rig.isa.decode(word)
    if instruction is None or instruction.row.op_class not in TRANSLATED or instruction.row.floating:
        return False
    return not targets_misaligned(instruction, rig.isa.alignment)


def ends(rig: Rig, word: int) -> bool:
    """Whether what follows a plain word may be data."""
    instruction = rig.isa.decode(word)
    return instruction is not None and instruction.row.op_class is OpClass.JUMP and not instruction.rd


def entry_at(of: space.TranslationCache, pc: int) -> bytes:
    page, at = of._entries._locate(pc)
    return bytes(page[at : at + entries.SIZE])


def random_word(rig: Rig, draw: random.Random) -> int:
    """Of any row, with any operands; sometimes with one bit more, or any word at all."""
    row = draw.choice(rig.isa.rows)
    word = row.match | draw.getrandbits(8 * row.length) & ~row.mask
    if draw.random() < 0.1:
        word ^= 1 << draw.randrange(2, 8 * row.length)
    return word if draw.random() < 0.95 else draw.getrandbits(32)


def write(rig: Rig, pc: int, words: list[int]) -> list[tuple[int, int]]:
    """Write them one behind the other; where each is, as many of its bits as its length has."""
    places = []
    for word in words:
        size = 4 if word & 3 == 3 else 2
        word &= (1 << 8 * size) - 1
        rig.bus.poke(pc, word.to_bytes(size, "little"))
        places.append((pc, word))
        pc += size
    return places


@pytest.mark.parametrize("isa", ISAS)
def test_it_decodes_nothing_where_no_instruction_may_begin(isa: str) -> None:
    """A debugger may set such a pc."""
    rig, of = made(isa)
    write(rig, RAM, [0x0013_0013] * 4)  # addi x0, x6, 1, at every second byte
    pc = RAM + 2
    may_begin = rig.isa.alignment == 2
    assert (of._decode_plain(pc)[0] > pc) == may_begin
    assert (entry_at(of, pc) != bytes(entries.SIZE)) == may_begin


@pytest.mark.parametrize("isa", ISAS)
def test_it_decodes_every_row_as_the_table_says(isa: str) -> None:
    rig, of = made(isa)
    draw, pc, decoded = random.Random(isa), RAM, 0
    for row in rig.isa.rows:
        for _ in range(40):
            word = row.match | draw.getrandbits(8 * row.length) & ~row.mask
            ((_, word),) = write(rig, pc, [word])
            size = 4 if word & 3 == 3 else 2
            after, ended = of._decode_plain(pc)
            plain = is_plain(rig, word)  # and zeros behind it are no instruction
            assert (after, ended) == ((pc + size, ends(rig, word)) if plain else (pc, False))
            if plain:
                assert entry_at(of, pc) == of._decoded_word(word).entry, f"{row.name} {word:#x}"
                decoded += 1
            else:
                assert entry_at(of, pc) == bytes(entries.SIZE)
            pc += 8
    assert decoded > 1000


@pytest.mark.parametrize("isa", ISAS)
@given(seed=st.integers(0, 1 << 32))
def test_runs_end_where_anything_else_begins(isa: str, seed: int) -> None:
    rig, of = made(isa)
    draw = random.Random(seed)
    start = RAM + PAGE - draw.randrange(1, 40) * 4
    places = write(rig, start, [random_word(rig, draw) for _ in range(30)])
    expected, ended = start, False
    for pc, word in places:
        size = 4 if word & 3 == 3 else 2
        if not is_plain(rig, word) or pc + size > RAM + PAGE:
            break
        expected, ended = pc + size, ends(rig, word)
    after, stopped = of._decode_plain(start)
    if expected < places[-1][0]:
        assert (after, stopped) == (expected, ended)
    for pc, word in places:
        if pc < min(after, expected):
            assert entry_at(of, pc) == of._decoded_word(word).entry
    # nothing of it is decoded twice
    assert of._decode_plain(start)[0] == start


@given(seed=st.integers(0, 1 << 32))
def test_lines_know_of_each_instruction_of_a_run(seed: int) -> None:
    """As where Python covers each by itself: a write drops the same lines, and the others know the same."""
    draw = random.Random(seed)
    (rig, of), (other, _) = made(ISAS[2]), made(ISAS[2])
    start = RAM + 2 * draw.randrange(64)
    places = write(rig, start, [random_word(rig, draw) for _ in range(60)])
    write(other, start, [word for _, word in places])
    of.decode(start)
    decoded = [at for at in range(start, RAM + PAGE, 2) if of._entries.operation(at)]
    for at in decoded:
        other.engine.code.cover(at, 4 if rig.bus.rams[0].u8[at - RAM] & 3 == 3 else 2)
    hit = draw.randrange(start & -LINE, decoded[-1] + 5)
    known = []
    for each in (rig, other):
        dropped: list[int] = []
        each.engine.code.on_drop.append(dropped.extend)
        each.bus.poke(hit, b"\xff")
        code = each.engine.code
        for base in tuple(code._lines):
            code._split(base)
        known.append((sorted(dropped), {base: line.sizes for base, line in code._lines.items() if line.sizes}))
    assert known[0] == known[1]


@pytest.mark.parametrize("place", [0, 4, 60, 64, 196])
def test_what_changes_behind_the_back_of_the_bus_is_found_by_fence_i(place: int) -> None:
    rig, of = made(program="addi x5,x5,1; " * 50)
    of.decode(RAM)
    operation, code = of._entries.operation, rig.engine.code
    code.refresh()
    assert operation(RAM + place)
    rig.bus.rams[0].u8[place] ^= 0x80
    code.refresh()
    assert [at for at in range(0, 200, 4) if not operation(RAM + at)] == [
        at for at in range(0, 200, 4) if place & -LINE in (at & -LINE, at + 4 & -LINE)
    ]


def test_code_that_is_written_for_ever_takes_no_more_memory() -> None:
    rig, of = made(program="addi x5,x5,1; " * 50)
    code, sizes = rig.engine.code, []
    for turn in range(200):
        of.decode(RAM)
        rig.bus.poke(RAM + 4 * (turn % 40), rig.bus.peek(RAM, 4))
        sizes.append((len(code._pending_runs), sum(map(len, code._runs_by_line.values())), len(code._lines)))
    assert max(sizes[:60]) == max(sizes)


def test_a_hook_is_not_passed() -> None:
    rig, of = made(program="addi x5,x5,1; " * 20)
    hooked = RAM + 24
    rig.engine.code.add_hook(hooked, lambda hart: None)
    assert of._decode_plain(RAM) == (hooked, False)
    assert of._decode_plain(hooked) == (hooked, False)
    of.decode(hooked)
    addi = of._numbers.by_name["addi"]
    assert [of._entries.operation(RAM + at) for at in (20, 28)] == [addi, addi]
    assert of._entries.operation(hooked) == entries.LEAVE


def test_nothing_is_decoded_where_fetches_are_forbidden_or_misaligned() -> None:
    _, of = made(program="addi x5,x5,1; " * 20)
    of._fetchable = ((RAM + 8, RAM + 18),)
    assert of._decode_plain(RAM) == (RAM, False)
    assert of._decode_plain(RAM + 8) == (RAM + 16, False), "two bytes of the next one are forbidden"
    assert of._decode_plain(RAM + 10) == (RAM + 10, False)


def test_lines_that_are_volatile_are_left_out() -> None:
    rig, of = made(program="addi x5,x5,1; " * 60)
    rig.engine.code.self_modifying_lines[RAM + LINE] = None
    assert of._decode_plain(RAM) == (RAM + LINE, False)
    assert of._decode_plain(RAM + LINE + 4) == (RAM + LINE + 4, False)
    assert of.decode(RAM + LINE)
    assert of._entries.operation(RAM + LINE) == entries.SELF_MODIFYING


@pytest.mark.parametrize("how", ["data behind a jump", "data behind a return", "another function behind a jump"])
def test_data_behind_code_is_none(how: str) -> None:
    """Zeros end what is decoded, without an entry; code behind a jump is decoded with it."""
    jump = "jalr x0,0(x1)" if "return" in how else "jal x0,0"
    rig, of = made(program=f"addi x5,x5,1; {jump}; " + ("addi x6,x6,1; " if "function" in how else ".word 0; "))
    of.decode(RAM)
    assert bool(of._entries.operation(RAM + 8)) is ("function" in how)
    assert rig.bus.rams[0].code[0] == 1 and rig.bus.rams[0].code[1] == 0


def test_data_in_a_line_of_code_is_written_without_decoding_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, of = made(program="loop:; sw x6,32(x7); addi x6,x6,1; beq x6,x8,8; jal x0,loop; spin:; jal x0,spin")
    rig.hart.x[7], rig.hart.x[8] = RAM, 50
    decoded = []
    original = space.TranslationCache.decode
    monkeypatch.setattr(space.TranslationCache, "decode", lambda self, pc: decoded.append(pc) or original(self, pc))
    rig.engine.run(400)
    assert rig.hart.x[6] == 50 and decoded.count(RAM) == 1
    rig.bus.poke(RAM + 8, assemble(rig.isa, "beq x6,x8,12"))
    assert not of._entries.operation(RAM) and not of._entries.operation(RAM + 12)


def test_a_hart_like_another_that_came_to_native_code_comes_to_it_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_image, "MAX_STORES", 64)
    monkeypatch.setattr(engine, "WARM_UP", 1000)
    monkeypatch.setattr(engine, "READY", 100)
    monkeypatch.setenv("PYV_NPU_CACHE", str(tmp_path))

    def begun(program: str, cycles: int, isa: str = ISAS[1]) -> bool:
        rig = Rig(program, isa=isa)
        rig.engine.run(cycles)
        return rig.engine._native is not None

    def busy(register: int) -> str:
        return f"again:; addi x{register},x0,1; {'addi x5,x5,1; ' * 30} bne x0,x{register},again"

    assert not begun(busy(6), 500)
    assert begun(busy(7), 2000)
    assert begun(busy(8), 500)
    assert not begun(busy(9), 90)
    assert not begun(busy(9), 500, ISAS[0]), "a hart of another kind"
