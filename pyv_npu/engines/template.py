"""Template of an external engine: an output-stationary array of 16 x 16 (docs/co-simulation-link.md). Needs numpy."""

import struct
import sys

import numpy as np

HELLO, RESET, START, RUN_UNTIL, EVENT, REACHED, SAVE, STATE, LOAD, READY, ERROR, BYE = range(1, 13)
BEGIN, READ, WRITE, DONE = 1, 2, 3, 4
ROWS, COLUMNS = 16, 16
receive, transmit = sys.stdin.buffer, sys.stdout.buffer


def send(kind: int, body: bytes = b"") -> None:
    transmit.write(struct.pack("<IB", 1 + len(body), kind) + body)


def event(cycle: int, kind: int, operand: int = 0, size: int = 0, block: tuple[int, int, int, int] = (0, 0, 0, 0),
          data: bytes = b"") -> tuple[int, bytes]:  # fmt: skip
    return cycle, struct.pack("<QBBHIIIII", cycle, kind, operand, 0, size, *block) + data


def step(body: bytes) -> list[tuple[int, bytes]]:
    """Return the events of a step, by cycle. A user's model replaces this function."""
    _now, _command, _tile, m, n, k = struct.unpack_from("<QIIIII", body)
    a = np.frombuffer(body, np.int8, m * k, 32).reshape(m, k)
    b = np.frombuffer(body, np.int8, k * n, 32 + m * k).reshape(k, n)
    c = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    events, now, fold = [event(0, BEGIN)], 0, k + ROWS + COLUMNS - 2
    for row in range(0, m, ROWS):
        for column in range(0, n, COLUMNS):
            part = c[row : row + ROWS, column : column + COLUMNS]
            events += [event(now, READ, 0, part.shape[0] * k), event(now, READ, 1, part.shape[1] * k)]
            now += fold
            events.append(event(now - 1, WRITE, 0, 0, (row, part.shape[0], column, part.shape[1]), part.tobytes()))
    return [*events, event(now - 1, DONE)]


def main() -> None:
    events: list[tuple[int, bytes]] = []
    started, at = b"", 0  # the step, and its next cycle: the whole state for SAVE
    while head := receive.read(5):
        size, kind = struct.unpack("<IB", head)
        body = receive.read(size - 1)
        if kind == HELLO:  # version, rows, columns, mask of types, dataflow, features, lookahead, name
            send(HELLO, struct.pack("<HHHHHHI", 1, ROWS, COLUMNS, 1 << 1, 1, 1, 1) + b"python 16x16")
        elif kind == RESET:
            events, started = [], b""
            send(READY)
        elif kind == START:
            events, started, at = step(body), body, 0
        elif kind == RUN_UNTIL:
            limit = struct.unpack("<Q", body)[0]
            while events and events[0][0] <= limit:
                at, data = events.pop(0)
                send(EVENT, data)
                limit = limit if events else at
            send(REACHED, struct.pack("<Q", limit))
            started, at = started if events else b"", limit + 1
        elif kind == SAVE:
            send(STATE, struct.pack("<Q", at) + started)
        elif kind == LOAD:  # repeats the step, without its past events
            at, started = struct.unpack_from("<Q", body)[0], body[8:]
            events = [entry for entry in step(started) if entry[0] >= at] if started else []
            send(READY)
        elif kind == BYE:
            break
        else:
            send(ERROR, f"a frame of type {kind}".encode())
        transmit.flush()


if __name__ == "__main__":
    main()
