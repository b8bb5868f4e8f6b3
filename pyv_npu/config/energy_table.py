"""Tables of energy and area: pJ of an event, um2 of a component (docs/energy.md); shipped or a user's."""

import math
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from pyv_npu.config.package_data import data_files, find_file
from pyv_npu.config.yaml_file import read_entries
from pyv_npu.errors import BadInputError, did_you_mean
from pyv_npu.text import integer

FOLDER = "energy_tables"
DEFAULT = "7nm"
BASE, TECHNOLOGY = "base", "technology"
MAX_VALUE = 1e9
SECTIONS = ("multiply", "add", "sram", "dram", "area", "area.multiply", "area.add")
_SIZE = re.compile(r"sram\.([0-9]{1,6})(KiB|MiB)")
_DRAM = re.compile(r"dram\.\w{1,32}")


class EnergyTable(NamedTuple):
    """Energy of events and area of components in one technology."""

    name: str
    technology: str
    values: Mapping[str, float]
    """Dotted key -> pJ (leakage: mW per mm2; area: um2)."""

    @property
    def standards(self) -> list[str]:
        """Names of DRAM standards."""
        return [key.removeprefix("dram.") for key in self.values if key.startswith("dram.")]

    def dram(self, standard: str) -> float:
        """Return the pJ of a byte of DRAM. BadInputError for a standard that the table lacks."""
        if standard not in self.standards:
            raise BadInputError(f"energy.dram = {standard}: must be one of {', '.join(self.standards)}")
        return self.values[f"dram.{standard}"]

    def sram(self, size: int) -> float:
        """Return the pJ of a byte of a bank of `size` bytes: linear between points of the table on logarithmic axes,
        constant below the first point, and proportional to the square root of the size above the last."""
        points = sorted((_bytes(key), value) for key, value in self.values.items() if key.startswith("sram."))
        if size <= points[0][0]:
            return points[0][1]
        for (low, below), (high, above) in pairwise(points):
            if size <= high:
                share = math.log(size / low) / math.log(high / low)
                return below * (above / below) ** share if below and above else below + share * (above - below)
        return points[-1][1] * math.sqrt(size / points[-1][0])


def _bytes(key: str) -> int:
    """Return the size of a bank in bytes, from a key such as sram.32KiB."""
    return integer(key.removeprefix("sram."), "bytes")


@cache
def read_shipped_table(name: str) -> EnergyTable:
    """Read a table of the package."""
    entries = {entry.path: entry.value for entry in read_entries(data_files(FOLDER)[name], SECTIONS)}
    return EnergyTable(name, str(entries.pop(TECHNOLOGY)), {key: float(value) for key, value in entries.items()})


def read_table(name: str) -> EnergyTable:
    """Read a shipped table by its name, or a file whose keys replace those of its `base`. BadInputError names file,
    line, key and rule."""
    if name in data_files(FOLDER):
        return read_shipped_table(name)
    path = find_file(name, FOLDER)
    entries = {entry.path: entry for entry in read_entries(path, SECTIONS)}
    base = entries.pop(BASE, None)
    if base is not None and not (isinstance(base.value, str) and base.value in data_files(FOLDER)):
        raise BadInputError(f"{path}:{base.line}: base: must be one of {', '.join(data_files(FOLDER))}")
    start = read_shipped_table(DEFAULT if base is None else base.value)
    technology = entries.pop(TECHNOLOGY, None)
    if technology is not None and not isinstance(technology.value, str):
        raise BadInputError(f"{path}:{technology.line}: technology: must be a word, for example 22 nm")
    values = dict(start.values)
    if any(key.startswith("sram.") for key in entries):
        values = {key: value for key, value in values.items() if not key.startswith("sram.")}
    for key, entry in entries.items():
        location = f"{path}:{entry.line}: {key}"
        if key not in start.values and not _DRAM.fullmatch(key):
            match = _SIZE.fullmatch(key)
            if match is None or not int(match[1]):
                hint = did_you_mean(key, start.values)
                raise BadInputError(f"{location}: unknown key{hint}; a table has {', '.join((*start.values, BASE))}")
        number = isinstance(entry.value, int | float) and not isinstance(entry.value, bool)
        if not number or not 0 <= entry.value <= MAX_VALUE:
            raise BadInputError(f"{location} = {entry.value}: must be a number from 0 to {MAX_VALUE:.0e}")
        values[key] = float(entry.value)
    return EnergyTable(name, start.technology if technology is None else technology.value, values)
