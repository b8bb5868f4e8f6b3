"""A reader of the Kanata log format 0004 that refuses what the format does not allow.

Written from kanata-log-format.md in the repository of Konata, and knows nothing of what writes the files.
"""

from dataclasses import dataclass, field


@dataclass
class Row:
    """An instruction of the file."""

    thread: int
    label: str = ""
    hover: str = ""
    stages: list[tuple[str, int, int]] = field(default_factory=list)
    """Name, first cycle, and the cycle in which it is over."""
    producers: list[int] = field(default_factory=list)
    retired: bool = False
    flushed: bool = False
    order: int = -1


def read(text: str) -> list[Row]:
    """The rows by their id. AssertionError where the text is no such file."""
    first, *lines = text.splitlines()
    assert first == "Kanata\t0004"
    assert text.endswith("\n")
    cycle: int | None = None
    rows: list[Row] = []
    under_way: dict[int, tuple[str, int]] = {}

    def alive(word: str) -> Row:
        row = rows[int(word)]
        assert not row.retired, f"{word} has retired"
        return row

    def end_stage(number: int) -> None:
        assert cycle is not None
        if number in under_way:
            name, start = under_way.pop(number)
            rows[number].stages.append((name, start, cycle))

    for line in lines:
        command, *words = line.split("\t")
        if command == "C=":
            assert cycle is None, "the cycle is given once"
            cycle = int(words[0])
            continue
        assert cycle is not None, "the cycle comes before everything else"
        match command, words:
            case "C", [step]:
                assert int(step) > 0, "time goes in one direction"
                cycle += int(step)
            case "I", [number, _, thread]:
                assert int(number) == len(rows), "ids are sequential"
                rows.append(Row(int(thread)))
            case "L", [number, "0", label]:
                alive(number).label += label
            case "L", [number, "1", hover]:
                alive(number).hover += hover
            case "S", [number, "0", name]:
                assert name
                alive(number)
                end_stage(int(number))
                under_way[int(number)] = name, cycle
            case "W", [consumer, producer, "0"]:
                assert int(producer) < len(rows)
                alive(consumer).producers.append(int(producer))
            case "R", [number, order, kind]:
                row = alive(number)
                end_stage(int(number))
                row.retired, row.flushed, row.order = True, {"0": False, "1": True}[kind], int(order)
            case _:
                raise AssertionError(f"no command: {line!r}")
    assert all(row.retired for row in rows), "every instruction is retired or flushed"
    kept = [row.order for row in rows if not row.flushed]
    assert sorted(kept) == list(range(len(kept))), "retirement ids are serial numbers"
    return rows
