"""What the last run has decoded is taken over where memory holds the same; nothing but the work depends on it."""

import random
from collections.abc import Callable
from pathlib import Path

import engine_choice
import pytest
from engine_world import compare
from hart_rig import RAM, Rig, assemble

from pyv_ext.bus.memory import LINE, PAGE, Ram
from pyv_ext.bus.shadow import Shadow
from pyv_ext.engines.fast import engine, space
from pyv_ext.engines.fast.entries import LINE_SIZE, SIZE, VOLATILE, entry_of
from pyv_ext.engines.kept.decoded_lines import SEEN, DecodedLines, Line
from pyv_ext.engines.kept.last_run import LastRun
from pyv_ext.engines.stop import StopReason

TURNS = 40
PROGRAM = "li x5,40; loop:; " + "".join(f"addi x{8 + n % 8},x{8 + n % 7},{n}; " for n in range(200))
PROGRAM += "addi x5,x5,-1; beq x5,x0,8; jal x0,loop; lui x6,0x100; lui x7,0x5; addi x7,x7,0x555; spin:; jal x0,spin"
CYCLES = 300 * TURNS


@pytest.fixture(autouse=True)
def early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code from the first instruction on, with a cache of its own."""
    monkeypatch.setenv("PYV_NPU_CACHE", str(tmp_path))
    monkeypatch.setattr(engine_choice, "NAME", "fast")
    monkeypatch.setattr(engine, "WARM_UP", 0)
    monkeypatch.setattr(space, "HOT", 16)
    monkeypatch.setattr(space, "WARM", 1)


def run(change: Callable[[Rig], object] = lambda rig: None) -> tuple[Rig, int]:
    """The program, after a change, and how many instructions were decoded since lines were taken over or kept."""
    rig = Rig(PROGRAM)
    change(rig)
    rig.engine.run(CYCLES)
    lines = rig.engine._native.spaces[None]._lines
    assert lines._known > 150
    return rig, lines._own


def test_a_second_run_decodes_what_the_first_had_not_come_to_when_it_was_kept() -> None:
    (first, _), (second, own) = run(), run()
    assert own == len(("lui", "lui", "addi", "jal"))
    assert second.state() == first.state()
    covered = ({base: line.sizes for base, line in rig.engine.code._lines.items()} for rig in (first, second))
    assert next(covered) == next(covered)


@pytest.mark.parametrize("place", [0, 4, LINE - 4, LINE, 10 * LINE + 8])
def test_a_line_that_has_changed_is_decoded(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own 16 instructions, and the last one of the line before, which might go on in it."""

    def change(rig: Rig) -> None:
        rig.bus.poke(RAM + 16 + place, assemble(rig.isa, "addi x20,x20,1"))

    run()
    rig, own = run(change)
    assert 0 < own <= 2 * LINE // 4
    monkeypatch.setattr(engine_choice, "NAME", "reference")
    reference = Rig(PROGRAM)
    change(reference)
    reference.engine.run(CYCLES)
    assert rig.state() == reference.state()


def test_lines_that_are_volatile_stay_so() -> None:
    run()
    rig, _ = run(lambda rig: rig.engine.code._volatile_lines.update({RAM + 2 * LINE: None}))
    operation = rig.engine._native.spaces[None]._entries.operation
    assert [operation(RAM + at) == VOLATILE for at in range(LINE, 4 * LINE, 4)] == [False] * 16 + [True] * 16 + [
        False
    ] * 16


def test_lines_are_taken_over_as_a_whole_where_fetches_are_permitted() -> None:
    of = run()[0].engine._native.spaces[None]
    for spans, whole in ((RAM, RAM + SEEN), True), ((RAM, RAM + LINE), False), ((RAM + 2, RAM + PAGE), False):
        of._fetchable = (spans,)
        assert of._whole(RAM) is whole


def test_hooks_are_called_in_lines_that_were_decoded() -> None:
    run()
    seen: list[int] = []
    rig, _ = run(lambda rig: rig.engine.add_hook(RAM + 400, lambda hart: seen.append(hart.x[5])))
    assert seen == [*range(TURNS, 0, -1)]
    rig.engine.add_hook(RAM + 804 + 4 * 7, lambda hart: seen.append(-1))
    assert rig.engine._native.spaces[None]._entries.operation(RAM + 400) == 1


@pytest.mark.parametrize(
    "how",
    [{"calm": True}, {}, {"jumps": True}, {"protected": True}, {"calm": True, "protected": True}, {"misaligned": True}],
    ids=str,
)
def test_random_programs_are_the_same_in_their_second_run(how: dict[str, bool]) -> None:
    for seed in random.Random(str(how)).sample(range(1000), 2):
        for _ in range(2):
            compare(("reference", "fast"), seed, 15_000, **how)


def test_lines_are_those_of_memory_and_of_their_recipe() -> None:
    rig = Rig("addi x5,x5,1")
    last, ram = LastRun(rig.engine), rig.bus.rams[0]
    made = entry_of(7, 1, 2, 3, 4) + bytes(LINE_SIZE - SIZE)
    seen = bytes(ram.u8[:SEEN])
    line = Line(RAM, 1, seen, made)

    def lines(recipe: str) -> DecodedLines:
        return DecodedLines(last, recipe, LINE_SIZE)

    lines("one").keep([line, line._replace(base=ram.end - LINE), line._replace(base=RAM - LINE)])
    assert [*lines("another").take(RAM, ram)] == [*lines("").take(RAM, ram)] == []
    again = lines("one")
    assert [*again.take(ram.end - 4, ram)] == [*again.take(RAM - 4, ram)] == []
    assert [*again.take(RAM + 100, ram)] == [line] and line.sizes == {RAM: 4}
    assert [*again.take(RAM, ram)] == [], "each once"
    other = Ram("other", RAM, 4096)
    other.u8[:SEEN] = seen
    assert [*lines("one").take(RAM, other)] == [line]
    other.u8[SEEN - 1] ^= 1
    assert [*lines("one").take(RAM, other)] == []


def test_what_stops_is_kept_without_any_translation() -> None:
    owns = []
    for _ in range(2):
        rig = Rig(f"{'addi x5,x5,1; ' * 100} .word 0")
        rig.hart.csrs.mtvec = 0
        assert rig.engine.run(1000).reason is StopReason.TRAP_LOOP
        owns.append(rig.engine._native.spaces[None]._lines._known)
    assert owns[0] > 100 and owns[1] > 100 and not rig.engine._native.spaces[None]._lines._own


def test_a_run_with_a_shadow_of_memory_begins_with_what_another_such_has_decoded() -> None:
    """Under it atomics are left to the slow path."""
    plain, watched = Rig("addi x5,x5,1"), Rig("addi x5,x5,1")
    watched.bus.shadow = Shadow(watched.hart, watched.bus.rams, bytes_written=False)
    assert LastRun(plain.engine).key != LastRun(watched.engine).key


def test_little_is_not_worth_keeping() -> None:
    lines = DecodedLines(LastRun(Rig("addi x5,x5,1").engine), "one", LINE_SIZE)
    for _ in range(63):
        lines.decoded()
    assert not lines.wanted()
    lines.decoded()
    assert lines.wanted()
    lines.keep([])
    assert not lines.wanted()
