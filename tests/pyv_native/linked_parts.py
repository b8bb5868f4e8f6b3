"""Functions of two modules that call each other, and a callback: a ping-pong over one record."""

from pyv_native.arena import callback
from pyv_native.intrinsics import call_native
from pyv_native.records import items, record


@record
class Table:
    """Root record of the two."""

    count: int = 0
    best: int = -9999
    log: list[int] = items(64)


@callback
def judge(table: Table, value: int, remaining: int) -> int:
    """Points of a value; Python answers."""
    raise NotImplementedError


def points_of(table: Table, remaining: int) -> int:
    """Points of one turn, in the log."""
    points = judge(table, table.count * 10, remaining)
    table.log.append(points)
    return points


def ping(table: Table, remaining: int) -> int:
    """One turn, and the others by `pong`: the points of all."""
    table.count += 1
    if not remaining:
        return 0
    points = points_of(table, remaining)
    table.best = max(table.best, points)
    return points + pong(table, remaining - 1)


def pong(table: Table, remaining: int) -> int:
    """One turn without a judge."""
    table.count += 100
    return ping(table, remaining - 1) if remaining else 0


def add_points(table: Table, first: int, second: int, third: int) -> int:
    """Port of a table: add three values to its log."""
    table.log.extend((first, second, third))
    table.count += 1
    return first + 10 * second + 100 * third + 1000 * table.count


def add_elsewhere(table: Table, function: int, buffer: int, first: int) -> int:
    """Call the port of a table in another buffer."""
    table.count += 1
    return call_native(function, buffer, first, first + 1, -first)
