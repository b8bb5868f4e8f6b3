"""Random programs in the native subset, over a small world of records."""

from collections.abc import Iterator

from hypothesis import strategies as st

HEADER = """
import stat
from dataclasses import field
from enum import IntEnum
from textwrap import dedent

from pyv_native.records import REFERENCE, array, i32, items, record, records, u8, u16
from pyv_native.intrinsics import u32

class Colour(IntEnum):
    RED = 3
    GREEN = 5

@record
class Node:
    color: u8 = 0
    value: int = 0
    next: "Node | None" = REFERENCE
    weights: list[int] = array(3)
    level: i32 = -1
    half: u16 = 7

@record
class Store:
    x: int = 0
    weights: list[int] = items(4)
    nodes: list[Node] = records(2)
    flag: bool = False
    marks: list[u8] = items()

@record
class World:
    count: int = 0
    mode: int = 0
    best: Node | None = REFERENCE
    nodes: list[Node] = records(6)
    order: list[Node] = items(12)
    store: Store = field(default_factory=Store)
    log: list[int] = items()

LIMIT = 5

def weigh(node: Node, factor: int) -> int:
    total = 0
    for weight in node.weights:
        total += weight * factor
    return total

def pick(world: World, node: Node, k: int) -> Node:
    if k < LIMIT and node.next is not None:
        return node.next
    return world.store.nodes[k % 2] if k & 1 else world.nodes[k % 6]

def last(numbers: list[int]) -> int:
    return numbers[len(numbers) - 1] if numbers else 0
"""
LOG, ORDER, MARKS = 48, 12, 5
"""Capacities of lists."""

LEAVES = (
    "a", "b", "i", "1", "7", "LIMIT", "Colour.GREEN", "world.count", "world.mode", "node.value", "node.color",
    "node.weights[2]", "world.store.x", "world.store.weights[1]", "world.nodes[4].weights[0]", "len(world.order)",
    "node.level", "node.half", "world.store.flag", "len(world.store.marks)",
    "len(world.store.nodes)", "last(world.log)", "weigh(node, 3)", "world.store.nodes[a % 2].value",
)  # fmt: skip
TESTS = (
    "a < b", "a >= 9", "a == i", "a != b", "not a & 1", "node.next is None", "node.next is not None", "world.order",
    "world.best is node", "world.mode", "not world.mode or b > 2", "a > 3 and (b > i or node.value)", "True",
    "node is not world.nodes[2] and len(world.log) < 9", "a and b",
)  # fmt: skip
STATEMENTS = (
    "node = world.nodes[a % 6]", "node = pick(world, node, {})", "node = world.store.nodes[b % 2]",
    "world.best = node", "world.best = None", "node.next = world.nodes[b % 6]", "node.next = None",
    "node.next = world.best", "other = world.best if world.best is not None else node\nnode = other",
    "node.value = {}", "node.value += {}", "world.count = {}", "world.store.x -= {}", "node.weights[a % 3] = {}",
    "world.store.weights[b % 4] += {}", "world.store.nodes[1].weights[0] = {}", "node.color = (Colour.RED + {}) & 255",
    "world.log.append({})", "world.log.extend(({}, {}, a))", "world.log.clear()",
    "world.order.append(node)", "world.order.clear()", "if len(world.order) > 2:\n    del world.order[2:]",
    "pick(world, node, a).value += {}",
    "if world.order:\n    world.order[0] = node", "if world.order:\n    node = world.order[len(world.order) - 1]",
    "node.level = {} & 255", "node.half = {}", "world.store.flag = {} & 1",
    "del world.order[len(world.order) // 2:]",
    "if len(world.store.marks) < 5:\n    world.store.marks.insert(len(world.store.marks) // 2, {} & 255)",
    "if len(world.order) > 3:\n    del world.order[1:3]", "world.log.insert(0, {})",
    "weights = node.weights\nweights[1] = {}", "a = {}", "b = {}", "a = {} if node.value else {}",
)  # fmt: skip
LOOPS = (
    "for i in range({} & 3):", "for i in range(2, {} & 7):", "for node in world.nodes:", "for node in world.order:",
    "for b in world.log:", "for node in world.store.nodes:", "for b in node.weights:",
    "for i in range({} & 15, 0, -3):", "for i in range(1, {} & 15, 4):", "for b in world.store.marks:",
)  # fmt: skip


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """An integer of 16 bits."""
    left, right = draw(st.sampled_from(LEAVES)), draw(st.sampled_from(LEAVES))
    form = draw(
        st.sampled_from(
            ("({0})", "({0} + {1})", "({0} - {1})", "({0} * {1})", "min({0}, {1})", "max({0}, -{1})", "({0} | {1})",
             "({0} >> 1)", "({0} << 2)", "(abs_({0}) // 3)", "({0} < {1})", "({0} if {1} else 4)", "(not {0})"),
        )
    )  # fmt: skip
    form = form.replace("abs_({0})", "({0} & 255)")
    return f"({form.format(left, right)} & 65535)"


@st.composite
def statements(draw: st.DrawFn, depth: int, counter: Iterator[int], looping: bool) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.integers(0, 9 if depth else 5))
        if kind <= 5:
            text = draw(st.sampled_from(STATEMENTS))
            text = text.format(*(draw(expressions()) for _ in range(text.count("{}"))))
            rows = text.split("\n")
            if "world.log." in text and "clear" not in text:
                rows = [f"if len(world.log) < {LOG - 3}:", *(f"    {row}" for row in rows)]
            elif "order.append" in text:
                rows = [f"if len(world.order) < {ORDER}:", *(f"    {row}" for row in rows)]
            lines += rows
            continue
        body = draw(statements(depth - 1, counter, looping or kind > 7))
        if kind <= 7:
            lines += [f"if {draw(st.sampled_from(TESTS))}:", *_inside(body)]
            leave = draw(st.sampled_from(("", "", "return a", *(("break", "continue") if looping else ()))))
            if leave:
                lines.append(f"    {leave}")
            if draw(st.booleans()):
                lines += ["else:", *_inside(draw(statements(depth - 1, counter, looping)))]
        elif kind == 8:
            lines += [draw(st.sampled_from(LOOPS)).format(draw(expressions())), *_inside(body)]
        else:
            n = f"n{next(counter)}"
            lines += [f"{n} = {draw(expressions())} & 3", f"while {n}:", f"    {n} -= 1", *_inside(body)]
    return lines


def _inside(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A module with a function `main(world, node, a, b)`."""
    body = ["i = 0", *draw(statements(3, iter(range(1000)), False)), "return a + (b << 16)"]
    return "\n".join([HEADER, "def main(world: World, node: Node, a: int, b: int) -> int:", *_inside(body), ""])
