"""Estimate of energy and area: counts of events times a table (docs/energy.md), without measurements."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import sqrt
from typing import Any, NamedTuple

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.opcodes import BITS, DataType
from npu_device.config import WIDTHS, NpuConfig
from npu_device.cost.counts import SUM_BITS, Count, Counts, Event
from npu_device.memory.bitwidth import expanded
from pyv_npu.config import Config
from pyv_npu.config.energy_table import EnergyTable, read_table
from pyv_npu.config.tree import EnergyConfig
from pyv_npu.observe.analysis.work import CommandWork
from pyv_npu.units import quantity

PICO, MM2 = 1e-12, 1e-6
"""J per pJ, mm2 per um2."""
FLOATS = {DataType.FP32: "fp32", DataType.FP16: "fp16", DataType.BF16: "bf16", DataType.E4M3FN: "fp8",
          DataType.E5M2: "fp8"}  # fmt: skip
"""Data type -> key of its multiplication."""
UNITS = {
    Event.MAC: "multipliers", Event.VECTOR: "vector engines", Event.SHIFT: "array registers",
    Event.WEIGHT_LOAD: "array registers", Event.ACCUMULATOR_READ: "accumulators",
    Event.ACCUMULATOR_WRITE: "accumulators", Event.SPM_READ: "scratchpad", Event.SPM_WRITE: "scratchpad",
    Event.NOC: "NoC", Event.DRAM_READ: "DRAM", Event.DRAM_WRITE: "DRAM",
}  # fmt: skip
"""Event -> unit of the machine that consumes its energy."""
COMPUTED = (Event.MAC, Event.VECTOR)


class Prices:
    """Energy per event, and the area, of a machine."""

    def __init__(self, config: NpuConfig, table: EnergyTable, dram: str, multiplier: str) -> None:
        self.config, self.table, self._multiplier = config, table, multiplier
        self._dram = table.dram(dram)
        self._events: dict[Count, float] = {}

    @classmethod
    def of(cls, npu: NpuConfig, energy: EnergyConfig) -> "Prices":
        """Return the prices of a configuration. BadInputError as `read_table`."""
        return cls(npu, read_table(energy.table), energy.dram, energy.multiplier)

    @cached_property
    def area(self) -> dict[str, float]:
        """Component -> mm2, of all clusters."""
        npu, te, value = self.config, self.config.te, self.table.values
        chained = te.kind == "chained_ve"
        cells = te.chained.T * te.chained.lanes if chained else te.rows * te.columns
        accumulate = "int32" if self._multiplier == "int8" else "fp32"
        bits = 32 if self._multiplier == "fp32" else 8 if self._multiplier in ("int8", "fp8") else 16
        cell = value[f"area.multiply.{self._multiplier}"] + value[f"area.add.{accumulate}"]
        cell += (2 * bits + SUM_BITS) * value["area.register"]
        wide = npu.ve.lanes * npu.ve.f_a[WIDTHS.index(32)] / npu.ve.f_a[WIDTHS.index(8)]
        kib, control = value["area.sram"] / 1024, value["area.control"]
        cluster = {
            "multipliers": te.count * cells * cell,
            "accumulators": te.count * te.acc_bytes * kib,
            "scratchpad": npu.spm.size * kib,
            "vector engines": npu.ve.count * wide * (value["area.multiply.fp32"] + value["area.add.fp32"]),
            "control": (te.count + npu.ve.count + npu.dma.channels) * control,
        }
        shared = {
            "L2": npu.l2.bytes * kib if npu.l2.enabled else 0.0,
            "control": control + npu.device_queue * DESCRIPTOR_SIZE * kib,
            "core": control,
        }
        names = dict.fromkeys((*cluster, *shared))
        return {name: MM2 * (npu.clusters * cluster.get(name, 0.0) + shared.get(name, 0.0)) for name in names}

    @cached_property
    def hop(self) -> float:
        """Wire length between adjacent clusters, or to the DRAM, mm: the side of a cluster's share of the area."""
        return sqrt(sum(self.area.values()) / self.config.clusters)

    @property
    def leakage(self) -> float:
        """Leakage power of the whole area, W."""
        return sum(self.area.values()) * self.table.values["leakage"] / 1000

    def price(self, count: Count) -> float:
        """Return the energy of an event, pJ."""
        if count not in self._events:
            self._events[count] = self._event(count)
        return self._events[count]

    def _event(self, count: Count) -> float:
        npu, table = self.config, self.table
        match count.event:
            case Event.MAC:
                return self._mac(*map(expanded, count.kinds))
            case Event.VECTOR:
                return self._vector(expanded(count.kinds[0]))
            case Event.SHIFT | Event.WEIGHT_LOAD:
                return table.values["register"]
            case Event.ACCUMULATOR_READ | Event.ACCUMULATOR_WRITE:
                return table.sram(npu.te.acc_bytes // npu.te.columns)
            case Event.SPM_READ | Event.SPM_WRITE:
                return table.sram(npu.spm.size // npu.spm.banks)
            case Event.NOC:
                return table.values["wire"] * self.hop
            case _:
                return self._dram

    def _mac(self, left: DataType, right: DataType) -> float:
        """Return the energy of a multiply-accumulate, pJ. Products of integers are proportional to the bits of both
        factors; with floats, integer weights are converted first."""
        value = self.table.values
        if left in FLOATS:
            return value[f"multiply.{FLOATS[left]}"] + value["add.fp32"]
        return value["multiply.int8"] * BITS[left] * BITS[right] / 64 + value["add.int32"]

    def _vector(self, kind: DataType) -> float:
        """Return the energy of an operation of a vector engine, pJ: the mean of an addition and a multiplication."""
        value = self.table.values
        if kind is DataType.INT32:
            return (16 * value["multiply.int8"] + value["add.int32"]) / 2
        name = "int8" if kind not in FLOATS else "fp32" if kind is DataType.FP32 else "fp16"
        return (value[f"multiply.{name}"] + value[f"add.{name}"]) / 2

    def energy(self, counts: Counts) -> dict[tuple[str, str], float]:
        """Return (unit, tensor role) -> pJ; the role of computation is `compute`."""
        total: dict[tuple[str, str], float] = {}
        for count, amount in counts.items():
            role = "compute" if count.event in COMPUTED else count.role.name.lower()
            key = UNITS[count.event], role
            total[key] = total.get(key, 0.0) + amount * self.price(count)
        return total


class EnergyEstimate(NamedTuple):
    """Energy and area of a run."""

    prices: Prices
    parts: Mapping[tuple[str, str], int]
    """(unit, tensor role) -> pJ. Core, leakage, L2 and descriptors are separate units or roles."""
    layers: Mapping[str, int]
    """Layer -> pJ of its commands, without leakage, core and descriptors."""
    seconds: float
    operations: int
    """Number of operations; a multiply-accumulate counts as two."""

    @property
    def total(self) -> int:
        """Total energy, pJ."""
        return sum(self.parts.values())

    def by(self, axis: int) -> dict[str, int]:
        """Return unit (axis 0) or tensor role (axis 1) -> pJ, the largest first."""
        sums: dict[str, int] = {}
        for key, energy in self.parts.items():
            sums[key[axis]] = sums.get(key[axis], 0) + energy
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def to_json(self) -> dict[str, Any]:
        """Return the object `energy` of docs/results.md."""
        total, prices = PICO * self.total, self.prices
        return {
            "estimate": True,
            "table": prices.table.name,
            "technology": prices.table.technology,
            "total_pj": self.total,
            "edp_js": _round(total * self.seconds),
            "power_w": _round(total / self.seconds) if self.seconds else None,
            "tops_per_watt": _round(self.operations / total / 1e12) if total else None,
            "units_pj": self.by(0),
            "roles_pj": self.by(1),
            "layers_pj": dict(self.layers),
            "area_mm2": {name: _round(area) for name, area in prices.area.items() if area},
        }


DIGITS = 9
"""Significant digits of JSON."""


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def estimate(
    config: Config, names: Sequence[str], works: Sequence[CommandWork], cycles: int, counters: Mapping[str, Any] | None,
    instructions: int, descriptors: int,
) -> EnergyEstimate:  # fmt: skip
    """Estimate the energy of a run of commands. `names`: layer of each; `counters`: object `npu` of results;
    `instructions`: of the core; `descriptors`: bytes of fetched descriptors."""
    prices, seconds = Prices.of(config.npu, config.energy), cycles / config.npu.clock_hz
    shares = _dram_shares(works, counters, descriptors) if config.npu.l2.enabled and counters else {}
    layers: dict[str, float] = {}
    parts: dict[tuple[str, str], float] = {}
    operations = 0
    for name, work in zip(names, works, strict=False):
        operations += 2 * work.macs + work.vector
        spent = prices.energy(_scale(work.counts, shares))
        layers[name] = layers.get(name, 0.0) + sum(spent.values())
        for key, energy in spent.items():
            parts[key] = parts.get(key, 0.0) + energy
    parts |= dict(_platform_energy(prices, counters, instructions, descriptors, seconds))
    by_part = {key: round(energy) for key, energy in parts.items()}
    by_layer = {name: round(energy) for name, energy in layers.items()}
    return EnergyEstimate(prices, by_part, by_layer, seconds, operations)


def _platform_energy(
    prices: Prices, counters: Mapping[str, Any] | None, instructions: int, descriptors: int, seconds: float
) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the energy outside of commands, pJ."""
    l2, values = (counters or {}).get("l2"), prices.table.values
    yield ("leakage", "leakage"), prices.leakage * seconds / PICO
    if instructions:
        yield ("core", "core"), instructions * values["instruction"]
    if descriptors:
        yield ("DRAM", "descriptors"), descriptors * prices.price(Count(Event.DRAM_READ))
        yield ("NoC", "descriptors"), descriptors * prices.price(Count(Event.NOC))
    if l2:
        l2_config = prices.config.l2
        line_bytes = l2_config.line * (l2["hits"] + 2 * l2["misses"] + l2["write_backs"])
        yield ("L2", "L2"), line_bytes * prices.table.sram(l2_config.bytes // l2_config.ways)


def _dram_shares(works: Sequence[CommandWork], counters: Mapping[str, Any], descriptors: int) -> dict[Event, float]:
    """Return the ratio of bytes at the pins of DRAM to bytes of transfers, which an L2 reduces."""
    counts: Counter[Event] = Counter()
    for work in works:
        for count, amount in work.counts.items():
            counts[count.event] += amount
    read, written = counters["dram_bytes_read"] - descriptors, counters["dram_bytes_written"]
    pins = {Event.DRAM_READ: read, Event.DRAM_WRITE: written}
    return {event: max(0, size) / counts[event] for event, size in pins.items() if counts[event]}


def _scale(counts: Counts, shares: Mapping[Event, float]) -> Counts:
    if not shares:
        return counts
    return Counts({count: round(amount * shares.get(count.event, 1)) for count, amount in counts.items()})


# -- presentation ------------------------------------------------------------------------------------------------------

SHOWN = 4
"""Maximum number of shares in a line."""


def tables(energy: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, str]]]:
    """Return figures of the object `energy` with their units, by its keys; `totals` has those of the whole run."""
    totals = {"energy": (PICO * energy["total_pj"], "J"), "energy x delay": (energy["edp_js"], "J s"),
              "mean power": (energy["power_w"], "W"), "efficiency": (energy["tops_per_watt"], "TOPS/W"),
              "area": (sum(energy["area_mm2"].values()), "mm2")}  # fmt: skip
    parts = {key: {name: (PICO * value, "J") for name, value in energy[key].items()}
             for key in ("units_pj", "roles_pj", "layers_pj")}  # fmt: skip
    area = {name: (value, "mm2") for name, value in energy["area_mm2"].items()}
    return {"totals": totals, **parts, "area_mm2": area}


def lines(energy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the object `energy` as rows (head, text)."""
    total, area = energy["total_pj"], energy["area_mm2"]
    totals = [quantity(*value) for name, value in tables(energy)["totals"].items() if name != "area"]
    return [
        ("energy", f"{', '.join(totals)} ({energy['technology']}, table {energy['table']})"),
        ("by unit", shares(energy["units_pj"], total)),
        ("by role", shares(energy["roles_pj"], total)),
        ("by layer", shares(energy["layers_pj"], total)),
        ("area", f"{quantity(sum(area.values()), 'mm2')}: {shares(area, sum(area.values()))}"),
    ]


def shares(parts: Mapping[str, float], total: float) -> str:
    """Format the largest parts in per cent."""
    largest = sorted(parts.items(), key=lambda item: -item[1])[:SHOWN]
    return ", ".join(f"{name} {quantity(value / total if total else 0.0, 'share')}" for name, value in largest)
