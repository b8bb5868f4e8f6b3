"""Cycles of each step of a decoder's conversation, of one run or side by side."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Step(NamedTuple):
    """The prompt, or one token behind it."""

    name: str
    makes: int
    """The token that it leads to."""
    cycles: tuple[int, ...]
    """Core cycles in each run."""

    @property
    def ratio(self) -> str:
        """The first run over the second one."""
        return f"{self.cycles[0] / self.cycles[1]:.3f}"


def timed(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of the runs that generated, and whose steps have a length."""
    return [name for name, run in runs.items() if "generate" in run and run.get("cycles_by_step")]


def steps(runs: Mapping[str, Mapping[str, Any]]) -> list[Step]:
    """The steps of the runs of `timed`, which are runs of one conversation."""
    chosen = [runs[name] for name in timed(runs)]
    if not chosen:
        return []
    generated = chosen[0]["generate"]
    count = len(generated["prompt"])
    names = [f"prompt of {count}", *(f"token {at}" for at in range(count, len(generated["tokens"]) - 1))]
    cycles = zip(*(run["cycles_by_step"] for run in chosen), strict=True)
    return [Step(*row) for row in zip(names, generated["tokens"][count:], cycles, strict=True)]


def heads(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Of a table with a row for each step."""
    names = timed(runs)
    return ["step", "makes token", *(f"{name} cycles" for name in names), *([" / ".join(names)] if names[1:] else [])]


CSV_HEADS = ("mode", "step", "makes_token", "cycles")


def csv_rows(runs: Mapping[str, Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Rows of tokens.csv."""
    table = steps(runs)
    return [
        (name, step.name, step.makes, step.cycles[index]) for index, name in enumerate(timed(runs)) for step in table
    ]


def side_by_side(loose: Mapping[str, Any], tight: Mapping[str, Any]) -> dict[str, Any]:
    """What the `generate` object of a comparison says, of the two runs; `steps` is empty where one did not end well."""
    runs = {"loose": loose, "tight": tight}
    tokens = {name: run["generate"]["tokens"] for name, run in runs.items()}
    both = len(timed(runs)) == len(runs)
    rows = [
        {"step": step.name, "makes": step.makes, **dict(zip(runs, step.cycles, strict=True))} for step in steps(runs)
    ]
    same = tokens["loose"] == tokens["tight"]
    return {"same_tokens": same, "tokens": tokens["loose"], "steps": rows if both else []}
