"""The compiler of the native subset: what it takes means what Python means, what it does not take is refused."""

import sys
import types
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from native_programs import HEADER, LOG, MARKS, ORDER, programs
from shares import draws

from npu_device.units import state
from pyv_native.arena import NULL_SIZE, ROOT, Arena
from pyv_native.errors import CheckError, NativeError, SubsetError
from pyv_native.module import NativeModule, interpreted
from pyv_native.records import Scalar, layout

_NUMBERS = count()


def module(source: str, path: Path, name: str = "") -> Any:
    name = name or f"native_sample_{next(_NUMBERS)}"
    file = path / f"{name}.py"
    file.write_text(source, encoding="utf-8")
    made = types.ModuleType(name)
    made.__file__ = str(file)
    sys.modules[name] = made
    exec(compile(source, str(file), "exec"), made.__dict__)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


def world_of(sample: Any, values: list[int]) -> Arena:
    """A world whose integers are taken from `values` in turn."""
    numbers = iter(values * 100)
    arena = Arena(sample.World, {"log": LOG, "store.marks": MARKS})
    world = arena.root
    world.count, world.mode = next(numbers), next(numbers)
    for owner, length in ((world.nodes, 6), (world.store.nodes, 2)):
        for _ in range(length):
            node = owner.add()
            node.value, node.color = next(numbers), next(numbers)
            node.weights.fill([next(numbers) for _ in range(3)])
    world.store.x = next(numbers)
    world.store.weights.fill([next(numbers) for _ in range(4)])
    world.nodes[0].next, world.nodes[3].next = world.nodes[4], world.store.nodes[1]
    world.best = world.nodes[next(numbers) % 6]
    for _ in range(next(numbers) % 5):
        world.order.append(world.nodes[next(numbers) % 6])
    return arena


def both(sample: Any, values: list[int], a: int, b: int, **constants: int) -> list[tuple[int, bytes]]:
    """(result, bytes of the records) of `main` in each form: interpreted, compiled, compiled with checks."""
    modules = [NativeModule([sample.main], sample.World, constants=constants, checked=one) for one in (False, True)]
    outcomes = []
    for call in (interpreted(sample.main, sample.World), *(module.entry(sample.main) for module in modules)):
        arena = world_of(sample, values)
        result = call(arena, arena.root.nodes[1].offset, a, b)
        outcomes.append((result, bytes(arena.buffer[ROOT:])))
    return outcomes


small = st.integers(0, 20)


@settings(
    max_examples=draws(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(programs(), st.lists(small, min_size=3, max_size=9), small, small)
def test_native_means_what_python_means(folder: Path, source: str, values: list[int], a: int, b: int) -> None:
    expected, *compiled = both(module(source, folder), values, a, b)
    assert compiled == [expected] * 2


LOOPS = f"""{HEADER}
def main(world: World, node: Node, a: int, b: int) -> int:
    total = 0
    for i in range(2, a):
        if i == 4:
            continue
        if i > b:
            break
        total += i
    for item in world.nodes:
        if item.value & 1:
            continue
        total += item.value << 4
        if item is node:
            break
    for item in world.order:
        if len(world.order) > 3:
            del world.order[2:]
            total += 1 << 10
        item.weights[1] += 3
    for k in range(len(world.store.nodes)):
        world.store.nodes[k].weights[k] = total + k
    left = min(a, 14)
    while left:
        left -= 1
        if left == 6:
            continue
        world.log.append(left)
        if left == b:
            break
        world.log.extend((total, Colour.GREEN))
        world.store.weights[1] += left
    other = world.best if a > 10 else None
    for item in world.nodes:
        if other is None or item.value > other.value:
            other = item
    if other is not None:
        other.color = 99
    return total + (left << 20) + (last(world.log) << 30)
"""


@settings(max_examples=draws(30), deadline=None)
@given(st.lists(small, min_size=3, max_size=9), small, small)
@example([7, 2, 20, 5, 11, 4, 13, 8, 9], 15, 3)
@example([4, 9, 12, 1, 8, 6, 2], 3, 9)
@example([6, 4, 8, 2, 12, 14, 10, 16, 20], 9, 20)
def test_loops_lists_and_references(folder: Path, values: list[int], a: int, b: int) -> None:
    expected, *compiled = both(loops(folder), values, a, b)
    assert compiled == [expected] * 2


@cache
def loops(folder: Path) -> Any:
    return module(LOOPS, folder)


def test_the_root_record_is_not_passed(folder: Path) -> None:
    source = (
        HEADER + "def main(world: World, node: Node, a: int, b: int) -> int:\n    return pick(world, node, a).value\n"
    )
    for a in range(8):
        expected, *compiled = both(module(source, folder), [3, 8, 5, 1, 9], a, 0)
        assert compiled == [expected] * 2


def test_views_are_the_same_objects_each_time(folder: Path) -> None:
    sample = module(HEADER, folder)
    arena = world_of(sample, [5, 2, 9, 4])
    world = arena.root
    assert world.best is world.nodes[5 % 6] or world.best in list(world.nodes)
    assert world.nodes[2] is list(world.nodes)[2] and world.nodes[0].next is world.nodes[4]
    world.best = None
    assert world.best is None and world.nodes[1].level == -1


def test_views_of_a_larger_buffer_hold_what_the_smaller_one_held(folder: Path) -> None:
    sample = module(HEADER, folder)
    arena = world_of(sample, [5, 2, 9, 4])
    before, size = bytes(arena.buffer), len(arena.buffer)
    places = [arena.allocate(800) for _ in range(4)]
    assert len(arena.buffer) > size and bytes(arena.buffer[:size]) == before
    assert len(set(places)) == 4 and places == sorted(places)
    arena.free(places[1])
    assert arena.allocate(24) == places[1] and arena.allocate(800) > places[3]
    assert arena.root.nodes[0].next is arena.root.nodes[4]


def test_fields_are_aligned_and_do_not_overlap(folder: Path) -> None:
    sample = module(HEADER, folder)
    for record in (state.EventLoop, state.Unit, state.Step, state.PieceRecord, sample.Node, sample.Store, sample.World):
        end = 0
        for field in layout(record).fields.values():
            alignment = field.shape.size if isinstance(field.shape, Scalar) else 8
            assert field.offset % alignment == 0 and field.offset >= end
            end = field.offset + field.shape.size
        assert end <= layout(record).size < end + 8


BROKEN = {
    "world.nodes[a].value = 3": "index 9 is not within the 6 items",
    "return node.weights[-1]": "index -1 is not within the 3 items",
    "world.order[len(world.order)] = node": "is not within the",
    "for i in range(60):\n        world.log.append(i)": "49 items, and the list holds at most 48",
    "for i in range(60):\n        world.log.extend((i, i, i, i, i))": "50 items, and the list holds at most 48",
    "world.order.clear()\n    world.order.insert(1, node)": "index 1 is not within the 0 items",
    "world.order.clear()\n    del world.order[1:]": "index 1 is not within the 0 items",
}


@pytest.mark.parametrize("line", BROKEN)
def test_what_is_out_of_bounds_is_an_error_in_every_build(line: str, folder: Path) -> None:
    """Compiled code stays inside the list, and the error says where."""
    source = HEADER + f"def main(world: World, node: Node, a: int, b: int) -> int:\n    {line}\n    return 7\n"
    sample = module(source, folder)
    with pytest.raises(CheckError, match=BROKEN[line]):
        arena = world_of(sample, [5, 2, 9, 4])
        interpreted(sample.main, sample.World)(arena, arena.root.nodes[1].offset, 9, 0)
    for checked in (False, True):
        arena = world_of(sample, [5, 2, 9, 4])
        before = bytes(arena.buffer)
        with pytest.raises(CheckError, match=rf"native_sample_\d+, line \d+: .*{BROKEN[line]}"):
            NativeModule([sample.main], sample.World, checked=checked).entry(sample.main)(
                arena, arena.root.nodes[1].offset, 9, 0
            )
        after, lists = bytes(arena.buffer), arena.root.log.offset
        assert after[: arena.root.offset] == before[: arena.root.offset] and lists < len(after)
        assert len(arena.root.log) <= LOG and len(arena.root.order) <= ORDER


def test_a_field_of_none_harms_nothing_else(folder: Path) -> None:
    """Neither the status nor the links, which lead to code; the checked build names the place."""
    source = HEADER + (
        "def main(world: World, node: Node, a: int, b: int) -> int:\n    other = world.nodes[1].next\n"
        "    other.value = a\n    other.color = 3\n    other.half = 9\n    return other.value\n"
    )
    sample = module(source, folder)
    arena = world_of(sample, [5, 2, 9, 4])
    before = bytes(arena.buffer[NULL_SIZE:])
    assert NativeModule([sample.main], sample.World).entry(sample.main)(arena, ROOT, 77, 0) == 77
    assert bytes(arena.buffer[NULL_SIZE:]) == before
    with pytest.raises(CheckError, match=r"other\.value: a field of None"):
        NativeModule([sample.main], sample.World, checked=True).entry(sample.main)(arena, ROOT, 77, 0)


def test_a_record_that_is_larger_than_the_null_record_is_not_referred_to(folder: Path) -> None:
    source = HEADER + (
        "@record\nclass Large:\n    rows: list[int] = array(200)\n\n"
        "def main(world: World, large: Large) -> int:\n    return large.rows[0]\n"
    )
    sample = module(source, folder)
    with pytest.raises(SubsetError, match="a record that is referred to has at most 992 bytes"):
        NativeModule([sample.main], sample.World)


def test_a_field_is_not_named_as_what_views_have(folder: Path) -> None:
    made = module(HEADER + "@record\nclass Place:\n    offset: int = 0\n", folder)
    with pytest.raises(NativeError, match=r"Place\.offset: views have an attribute of this name: choose another"):
        Arena(made.Place)


def test_checks_of_the_checked_build(folder: Path) -> None:
    for line, sentence in {
        "return world.nodes[1].next.value": "a field of None",
        "world.nodes[1].color = 256": "256 does not fit into a field of 1 bytes",
        "world.nodes[1].level = -1 << 40": "does not fit into a field of 4 bytes",
    }.items():
        source = HEADER + f"def main(world: World, node: Node, a: int, b: int) -> int:\n    {line}\n    return 7\n"
        sample = module(source, folder)
        arena = world_of(sample, [5, 2, 9, 4])
        with pytest.raises(CheckError, match=sentence):
            NativeModule([sample.main], sample.World, checked=True).entry(sample.main)(arena, ROOT, 0, 0)
        NativeModule([sample.main], sample.World).entry(sample.main)(arena, ROOT, 0, 0)


def test_what_is_known_need_not_be_there(folder: Path) -> None:
    """A field with a known value is not read, and a function that is not asked for may vanish."""
    source = (
        HEADER
        + """
def never(world: World) -> int:
    return world.count // world.unknown

def main(world: World, node: Node, a: int, b: int) -> int:
    if world.mode and (world.mode or a):
        return node.value
    return never(world)
"""
    )
    expected, *compiled = both(module(source, folder), [4, 1, 6], 0, 0, **{"World.mode": 1})
    assert compiled == [expected] * 2


OUTSIDE = (
    "return [a]", "return unknown(a)", "return a ** 2", "return a.real", "for i in range(a, b, 0):\n        pass",
    "for i in range(a, b, a):\n        pass", "return last(node.weights)",
    "for i in world:\n        pass", "return world.colour", "world.nodes.append(node)", "node.weights.append(1)",
    "del world.nodes[1:2]", "del world.order[0]", "world.log = []", "world.nodes[0] = node", "return node.value[0]",
    "return a[0]", "node.weights.extend([a])", "a, b = b, a", "return len(node)",
    "return weigh(node)", "world.log.append(a, b)", "return pick(world, node, k=a)", "with a:\n        pass",
    "return u32(a, b)", "return stat.ST_SIZE", "return dedent(a)",
)  # fmt: skip


@pytest.mark.parametrize("line", OUTSIDE)
def test_what_is_outside_the_subset_is_refused(line: str, folder: Path) -> None:
    source = HEADER + f"def main(world: World, node: Node, a: int, b: int) -> int:\n    {line}\n"
    made = module(source, folder)
    with pytest.raises(SubsetError, match=rf"{made.__name__}, line \d+: .*outside the native subset"):
        NativeModule([made.main], made.World)


@pytest.mark.parametrize(
    ("definition", "remedy"),
    [
        ("def main(a: int, b: float) -> int:", "use integers, records and lists of these"),
        ("def main(a: list[list[int]]) -> int:", "lists of lists: use a record"),
        ("def main(a: int, b) -> int:", "annotate parameters and result"),
        ("def main(a: int):", "annotate parameters and result"),
        ("def main(a: int, b: int = 3) -> int:", "parameters are plain and have no defaults"),
        ("def main(a: int, *, b: int) -> int:", "parameters are plain and have no defaults"),
    ],
)
def test_a_definition_outside_the_subset_is_refused(definition: str, remedy: str, folder: Path) -> None:
    made = module(f"{HEADER}{definition}\n    return 1\n", folder)
    place = f"{made.__name__}, line {HEADER.count(chr(10)) + 1}"
    with pytest.raises(SubsetError, match=rf"^{place}: main: outside the native subset: .*{remedy}"):
        NativeModule([made.main], made.World)


@pytest.mark.parametrize("checked", [False, True])
def test_lists_of_none_and_empty_lists_harm_nothing_else(checked: bool, folder: Path) -> None:
    """Neither a list of the null record, whose length is nobody's, nor a wrong index of a list without items."""
    source = HEADER.replace("class Store:", "class Store:\n    rows: list[int] = items(4)") + (
        "@record\nclass Owner:\n    empty: list[int] = items(0)\n    after: int = 5\n    none: Store | None = None\n\n"
        "def append(owner: Owner) -> int:\n    owner.none.rows.append(7)\n    return 1\n\n"
        "def write(owner: Owner) -> int:\n    owner.empty[0] = 7\n    return 1\n"
    )
    sample = module(source, folder)
    for function, sentence in ((sample.append, "a field of None"), (sample.write, "0 is not within the 0 items")):
        arena = Arena(sample.Owner)
        with pytest.raises(CheckError, match=sentence):
            NativeModule([function], sample.Owner, checked=checked).entry(function)(arena)
        assert arena.root.after == 5 and not len(arena.root.empty) and arena.root.none is None


def test_a_changed_source_is_compiled_anew(tmp_path: Path) -> None:
    """Whatever code is kept from before: the text decides, and what the module's integers are."""
    source, found = "LIMIT = 5\n\ndef f(a: int) -> int:\n    return a + LIMIT\n", []
    for text, limit in ((source, 5), (source, 6), (source.replace("+", "-"), 6), (source, 5)):
        made = module(text, tmp_path, "native_changed")
        made.LIMIT = limit
        found.append(NativeModule([made.f]).entry(made.f)(Arena(state.Bank), 10))
    assert found == [15, 16, 4, 15]
