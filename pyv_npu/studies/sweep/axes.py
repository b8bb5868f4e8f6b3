"""Axes of a sweep, and the points that they span: `KEY=1:64:x2`, a SWEEP.yaml, a sample."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from math import prod
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml

from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.config import Config
from pyv_npu.config.schema import keys_of
from pyv_npu.config.yaml_file import read_yaml
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.text import digits, integer

MOST_VALUES = 10_000
"""Maximum number of values of an axis."""
MOST_POINTS = 100_000
"""Maximum number of points of a sweep."""
FORM = "KEY=1:64:x2, KEY=0:100:20 or KEY=a,b"
METHODS = ("random", "latin")

Values = Mapping[str, str]
"""Value of each axis at a point."""


class Axis(NamedTuple):
    """Varied setting, by its name on the command line, with its ordered values."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """Sample of the points of the grid."""

    count: int
    method: str = "latin"
    """`random` draws each axis independently; a Latin hypercube covers each part of an axis equally often."""
    seed: int = 1


@dataclass(frozen=True)
class SweepPlan:
    """Points of a sweep."""

    axes: tuple[Axis, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    """Axes that advance together instead of crossing each other."""
    sample: Sample | None = None
    listed: tuple[Values, ...] = field(default=())
    """Explicit points, after those of the axes."""

    def __post_init__(self) -> None:
        """UsageError for no axis, a repeated axis, or axes that cannot advance together."""
        sizes: dict[str, int] = {}
        for name, values in self.axes:
            if name in sizes:
                raise UsageError(f"axis {name}: is given twice; keep one")
            sizes[name] = len(values)
        members: set[str] = set()
        for group in self.together:
            text = ",".join(group)
            for name in group:
                if name not in sizes:
                    raise UsageError(f"--zip {text}: there is no axis {name}; axes are {', '.join(sizes) or 'none'}")
                if name in members:
                    raise UsageError(f"--zip {text}: {name} advances with others already; name it once")
                members.add(name)
            if len({sizes[name] for name in group}) > 1:
                counts = ", ".join(f"{name} has {sizes[name]}" for name in group)
                raise UsageError(f"--zip {text}: axes that advance together have equally many values: {counts}")
        if not (self.axes or self.listed):
            raise UsageError(f"a sweep needs an axis: {FORM}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes, in the order of the table."""
        return tuple(
            dict.fromkeys([*(axis.name for axis in self.axes), *(name for point in self.listed for name in point)])
        )

    def points(self) -> list[Values]:
        """Return every point once, in a fixed order: the last axis varies fastest. UsageError for too many points."""
        groups = self._groups()
        count = prod(len(group) for group in groups) if groups else 0
        total = min(count, self.sample.count) if self.sample is not None else count
        if total + len(self.listed) > MOST_POINTS:
            raise UsageError(f"a sweep of {total + len(self.listed):,} points: there may be {MOST_POINTS:,}; sample it")
        combinations = product(*groups) if self.sample is None else _sample_points(groups, self.sample)
        crossed = (
            ({name: value for part in parts for name, value in part.items()} for parts in combinations)
            if groups
            else ()
        )
        unique = {tuple(sorted(point.items())): point for point in (*crossed, *self.listed)}
        return list(unique.values())

    def _groups(self) -> list[Sequence[Values]]:
        """Return the factors of the cross product: single axes, and groups of axes that advance together."""
        by_name = {axis.name: axis for axis in self.axes}
        done: set[str] = set()
        groups: list[Sequence[Values]] = []
        for axis in self.axes:
            names = next((group for group in self.together if axis.name in group), (axis.name,))
            if axis.name not in done:
                done.update(names)
                columns = [by_name[name].values for name in names]
                groups.append([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])
        return groups


def _sample_points(groups: Sequence[Sequence[Values]], sample: Sample) -> Iterator[tuple[Values, ...]]:
    """Yield random points of the grid."""
    random, columns = Random(sample.seed), []
    for group in groups:
        if sample.method == "random":
            places = [random.randrange(len(group)) for _ in range(sample.count)]
        else:
            places = [len(group) * index // sample.count for index in range(sample.count)]
            random.shuffle(places)
        columns.append([group[place] for place in places])
    return zip(*columns, strict=True)


# -- from the command line ---------------------------------------------------------------------------------------------


def plan(texts: Sequence[str], together: Sequence[str] = ()) -> SweepPlan:
    """Parse the axes of a command line; `together`: lists of names, `KEY,KEY`. UsageError names the argument."""
    return SweepPlan(tuple(map(axis, texts)), tuple(tuple(text.split(",")) for text in together))


def axis(text: str) -> Axis:
    """Parse the axis `KEY=VALUES`; UsageError for invalid text."""
    name, equals, values = text.partition("=")
    if not (name and equals):
        raise UsageError(f"axis {text}: must have the form {FORM}")
    return Axis(name, _values(name, values))


def _values(name: str, text: str) -> tuple[str, ...]:
    """Parse the values of an axis: words and ranges of integers, separated by commas outside brackets; UsageError for
    invalid text."""
    shown, unit = f"{name}={text}", _unit(name)
    values: list[str] = []
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", text):
        values += _range(part, shown, unit) if _RANGE.fullmatch(part) else [digits(part.strip(), unit)]
    if not values or not all(values):
        raise UsageError(f"axis {shown}: has no value; give some, as in {FORM}")
    if len(values) > MOST_VALUES:
        raise UsageError(f"axis {shown}: {len(values):,} values, there may be {MOST_VALUES:,}; take a larger step")
    if len(set(values)) != len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise UsageError(f"axis {shown}: gives {twice} twice; keep one")
    return tuple(values)


def _unit(name: str) -> str:
    """Return the unit of a key; empty for other axes."""
    key = keys_of(Config).get(name)
    return "" if key is None else key.unit


_RANGE = re.compile(r" *-?[\w./ ]+:-?[\w./ ]+(:[x+-]?[\w./ ]+)?")


def _range(text: str, shown: str, unit: str) -> list[str]:
    """Return the values of a range: `1:64:x2` multiplies, `0:100:20` adds, `1:4` adds 1. The end is included if the
    steps reach it."""
    first, last, *step_text = (word.strip() for word in text.split(":"))
    step = step_text[0] if step_text else "1"
    factor = step.startswith("x")
    try:
        low, high = integer(first, unit), integer(last, unit)
        by = integer(step[1:]) if factor else integer(step, unit)
    except ValueError:
        return [text]  # a word with colons, such as an address
    if (factor and (by < 2 or low < 1)) or (not factor and by == 0):
        rule = "a factor of at least 2, from at least 1" if factor else "another step than 0"
        raise UsageError(f"axis {shown}: {text} never ends; give {rule}")
    values = []
    while (low <= high) if factor or by > 0 else (low >= high):
        values.append(str(low))
        low = low * by if factor else low + by
        if len(values) > MOST_VALUES:
            raise UsageError(f"axis {shown}: {text} has more than {MOST_VALUES:,} values; take a larger step")
    if not values:
        raise UsageError(f"axis {shown}: {text} runs from {first} to {last} and holds no value; turn it round")
    return values


# -- from a file -------------------------------------------------------------------------------------------------------


class SweepFile(NamedTuple):
    """Contents of a SWEEP.yaml."""

    program: str
    plan: SweepPlan
    base: Mapping[str, str]
    """Settings of every point, by the names that axes use."""
    figures: tuple[str, ...]


_WORDS = {"program": str, "base": dict, "axes": dict, "zip": list, "points": list, "sample": dict, "figures": list,
          "repeat": int}  # fmt: skip


def read(path: Path) -> SweepFile:
    """Read a SWEEP.yaml {program, base, axes, zip, points, sample, figures, repeat}. BadInputError names file and
    key."""
    try:
        check_input(path, MAX_TEXT)
        document = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}; give the name of a sweep") from None
    except (ValueError, yaml.YAMLError) as error:
        raise BadInputError(f"{path}: not YAML: {str(error).splitlines()[0]}; correct the file") from None
    if not isinstance(document, dict):
        raise BadInputError(f"{path}: must be a table with {', '.join(_WORDS)}")
    for word, value in document.items():
        if word not in _WORDS:
            raise BadInputError(f"{path}: {word}: unknown; a sweep has {', '.join(_WORDS)}")
        if not isinstance(value, _WORDS[word]) or isinstance(value, bool):
            raise BadInputError(f"{path}: {word}: must be a {_WORDS[word].__name__}")
    if not document.get("program"):
        raise BadInputError(f"{path}: program: is missing; name what is run")
    try:
        return _of(document)
    except UsageError as error:
        raise BadInputError(f"{path}: {error}") from None


def _of(document: Mapping[str, Any]) -> SweepFile:
    axes = [Axis(str(name), _list_values(str(name), values)) for name, values in document.get("axes", {}).items()]
    repeat = document.get("repeat", 1)
    if not 1 <= repeat <= MOST_VALUES:
        raise UsageError(f"repeat {repeat}: must be from 1 to {MOST_VALUES}")
    if repeat > 1:
        axes.append(Axis("run.seed", tuple(str(seed) for seed in range(1, repeat + 1))))
    points = document.get("points", [])
    if not all(isinstance(point, dict) and point for point in points):
        raise UsageError("points: must be a list of tables, each with the value of some axes")
    zipped = document.get("zip", [])
    if not all(isinstance(group, list) for group in zipped):
        raise UsageError("zip: must be a list of lists of axes")
    candidate = SweepPlan(
        tuple(axes), tuple(tuple(map(str, group)) for group in zipped), _sample(document.get("sample")),
        tuple({str(name): _word(str(name), value) for name, value in point.items()} for point in points),
    )  # fmt: skip
    base = {str(name): _word(str(name), value) for name, value in document.get("base", {}).items()}
    return SweepFile(document["program"], candidate, base, tuple(map(str, document.get("figures", ()))))


def _list_values(name: str, values: object) -> tuple[str, ...]:
    """Return the values of an axis: the elements of a list, or a text parsed as on the command line."""
    if isinstance(values, list):
        if not values:
            raise UsageError(f"axis {name}: has no value; give some, as in {FORM}")
        return tuple(_word(name, value) for value in values)
    return _values(name, _word(name, values))


def _word(name: str, value: object) -> str:
    """Format a YAML value of an axis as the command line expects it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else digits(str(value), _unit(name))


_SAMPLE = tuple(entry.name for entry in fields(Sample))


def _sample(document: Mapping[str, Any] | None) -> Sample | None:
    if document is None:
        return None
    unknown = [word for word in document if word not in _SAMPLE]
    if unknown:
        raise UsageError(f"sample: {unknown[0]}: unknown; it has {', '.join(_SAMPLE)}")
    sample = Sample(**document) if "count" in document else Sample(0)
    if type(sample.count) is not int or not 1 <= sample.count <= MOST_POINTS:
        raise UsageError(f"sample: count: must be an integer from 1 to {MOST_POINTS}")
    if sample.method not in METHODS or type(sample.seed) is not int:
        raise UsageError(f"sample: method must be one of {', '.join(METHODS)}, and seed an integer")
    return sample
