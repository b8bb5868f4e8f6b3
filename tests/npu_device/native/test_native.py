"""The compiler of the native subset: what it takes means what Python means, what it does not take is refused."""

import sys
import types
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from native_programs import HEADER, LOG, programs
from shares import draws

from npu_device.abi.errors import NpuDeviceError
from npu_device.event_loop import state
from npu_device.native.module import NativeModule
from npu_device.native.records import ListOf, Reader, Writer, layout, view

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


def world_of(sample: Any, values: list[int]) -> Any:
    """A world whose integers are taken from `values` in turn."""
    numbers = iter(values * 100)
    world = sample.World(next(numbers), next(numbers))
    world.nodes = [
        sample.Node(next(numbers), weights=[next(numbers) for _ in range(3)], color=next(numbers)) for _ in range(6)
    ]
    world.store = sample.Store(
        next(numbers), [next(numbers) for _ in range(4)], [sample.Node(7, weights=[1, 2, 3]) for _ in range(2)]
    )
    world.nodes[0].next, world.nodes[3].next = world.nodes[4], world.store.nodes[1]
    world.best = world.nodes[next(numbers) % 6]
    world.order = [world.nodes[next(numbers) % 6] for _ in range(next(numbers) % 5)]
    return world


def words_of(world: Any) -> tuple[list[int], Writer]:
    writer = Writer()
    writer.add(world, {"log": LOG})
    writer.link()
    return writer.words, writer


def both(sample: Any, values: list[int], a: int, b: int, **known: int) -> tuple[Any, Any]:
    """(result, words of the records) of `main`, interpreted and compiled."""
    world = world_of(sample, values)
    words, writer = words_of(world)
    array, place = np.array(words, np.int64), writer.addresses[id(world.nodes[1])]
    result = sample.main(world, world.nodes[1], a, b)
    native = NativeModule(sample, root=sample.World, only=["main"], known=known)
    compiled = native.entry("main")(array.ctypes.data, place, a, b)
    read = Reader(array.tolist()).read(sample.World, 0)
    return (result, words_of(world)[0]), (compiled, words_of(read)[0])


small = st.integers(0, 20)


@settings(
    max_examples=draws(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(programs(), st.lists(small, min_size=3, max_size=9), small, small)
def test_native_means_what_python_means(folder: Path, source: str, values: list[int], a: int, b: int) -> None:
    interpreted, compiled = both(module(source, folder), values, a, b)
    assert interpreted == compiled


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
    interpreted, compiled = both(loops(folder), values, a, b)
    assert interpreted == compiled


@cache
def loops(folder: Path) -> Any:
    return module(LOOPS, folder)


def test_a_root_record_is_passed_by_name_and_stands_first(folder: Path) -> None:
    source = (
        HEADER + "def main(world: World, node: Node, a: int, b: int) -> int:\n    return pick(world, node, a).value\n"
    )
    for a in range(8):
        interpreted, compiled = both(module(source, folder), [3, 8, 5, 1, 9], a, 0)
        assert interpreted == compiled


def test_records_go_to_words_and_back(folder: Path) -> None:
    sample = module(HEADER, folder)
    world = world_of(sample, [5, 2, 9, 4])
    world.log = [11, 12]
    words, writer = words_of(world)
    made = Reader(words).read(sample.World, 0)
    assert made.best is made.nodes[world.nodes.index(world.best)]
    assert [made.nodes.index(node) for node in made.order] == [world.nodes.index(node) for node in world.order]
    assert (made.nodes[3].next, made.log) == (made.store.nodes[1], [11, 12])
    assert words_of(made)[0] == words
    seen = view(sample.World).from_buffer(np.array(words, np.int64).data)
    assert (seen.count, seen.store.x, len(seen.order)) == (world.count, world.store.x, len(world.order))
    assert [node.value for node in seen.nodes] == [node.value for node in world.nodes]
    assert seen.best == writer.addresses[id(world.best)]


def test_what_a_list_has_no_room_for_is_refused(folder: Path) -> None:
    sample = module(HEADER, folder)
    with pytest.raises(AssertionError, match=r"World\.nodes has more than 6"):
        words_of(sample.World(nodes=[sample.Node() for _ in range(7)]))


def test_fields_of_the_event_loop_stand_side_by_side() -> None:
    """Each word belongs to one field; a list has a word for its length."""
    for record in (state.EventLoop, state.Unit, state.Run, state.Step, state.Piece, state.Cache, state.DramChannel):
        end = 0
        for field in layout(record).fields.values():
            assert field.offset == end
            end += field.shape.size
        assert end == layout(record).size
    share = layout(state.Unit).fields["share"].shape
    assert isinstance(share, ListOf) and share.size == 1 + share.capacity


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
    interpreted, compiled = both(module(source, folder), [4, 1, 6], 0, 0, **{"World.mode": 1})
    assert interpreted == compiled


OUTSIDE = (
    "return [a]", "return unknown(a)", "return a ** 2", "return a.real", "for i in range(a, b, 2):\n        pass",
    "for i in world:\n        pass", "return world.colour", "world.nodes.append(node)", "world.order.insert(0, node)",
    "del world.order[1:2]", "del world.order[0]", "world.log = []", "world.nodes[0] = node", "return node.value[0]",
    "return a[0]", "node.weights.extend([a])", "return a < b < 3", "a, b = b, a", "return len(node)",
    "return weigh(node)", "world.log.append(a, b)", "return pick(world, node, k=a)", "with a:\n        pass",
)  # fmt: skip


@pytest.mark.parametrize("line", OUTSIDE)
def test_what_is_outside_the_subset_is_refused(line: str, folder: Path) -> None:
    source = HEADER + f"def main(world: World, node: Node, a: int, b: int) -> int:\n    {line}\n"
    made = module(source, folder)
    with pytest.raises(NpuDeviceError, match="outside the native subset"):
        NativeModule(made, root=made.World)


def test_a_changed_source_is_compiled_anew(tmp_path: Path) -> None:
    """Whatever code is kept from before: the text decides, and what the module's integers are."""
    source, found = "LIMIT = 5\n\ndef f(a: int) -> int:\n    return a + LIMIT\n", []
    for text, limit in ((source, 5), (source, 6), (source.replace("+", "-"), 6), (source, 5)):
        made = module(text, tmp_path, "native_changed")
        made.LIMIT = limit
        found.append(NativeModule(made).entry("f")(None, 10))
    assert found == [15, 16, 4, 15]
