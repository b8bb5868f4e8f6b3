"""Energy and area: three layers computed anew from shapes and loop nest, tables and their keys, and what shows them."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import TensorProto, helper

from benchmarks.mapping import gemm
from npu_device.abi.opcodes import DataType, LoopOrder
from npu_device.config import NpuConfig, TeConfig
from npu_device.cost.counts import Count, Counts, Event
from npu_device.levels.runner import Listed
from npu_device.trace.events import Role
from pyv_npu import Simulator
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.config.energy_table import SECTIONS, EnergyTable, read_shipped_table, read_table
from pyv_npu.config.package_data import data_files
from pyv_npu.errors import BadInputError
from pyv_npu.observe.analysis.energy import Prices
from pyv_npu.observe.analysis.work import works
from pyv_npu.studies.sweep.effects import pareto
from pyv_npu.studies.sweep.figures import select_figures
from pyv_npu.studies.sweep.point import Addresses
from pyv_npu.studies.sweep.table import Table
from pyv_npu.workloads.command_list import CommandList
from pyv_npu.workloads.compiled import target_of
from toolchain.backend import compile_layers
from toolchain.codegen.commands import MappingOptions

DOCS = Path(__file__).resolve().parents[3] / "docs" / "energy.md"


def values(name: str) -> dict[str, float]:
    """The keys of a shipped table, read without the product."""

    def flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
        for key, value in node.items():
            if isinstance(value, dict):
                yield from flat(value, f"{prefix}{key}.")
            elif key != "technology":
                yield prefix + key, float(value)

    return dict(flat(yaml.safe_load(Path(data_files("energy_tables")[name]).read_text())))


# -- three layers anew -------------------------------------------------------------------------------------------------


def bank(table: Mapping[str, float], size: int) -> float:
    """pJ a byte: straight lines between the three points on logarithmic axes."""
    x = [math.log2(8192), math.log2(32768), math.log2(1 << 20)]
    y = [math.log2(table[f"sram.{point}"]) for point in ("8KiB", "32KiB", "1MiB")]
    return float(2 ** np.interp(math.log2(size), x, y))


def side(table: Mapping[str, float], npu: NpuConfig) -> float:
    """mm: the side of a machine of one cluster whose multipliers are int8."""
    te, ve = npu.te, npu.ve
    cell = table["area.multiply.int8"] + table["area.add.int32"] + (8 + 8 + 32) * table["area.register"]
    area = te.count * te.rows * te.columns * cell
    area += (te.count * te.acc_bytes + npu.spm.size + 64 * npu.device_queue) / 1024 * table["area.sram"]
    area += ve.count * ve.lanes / 4 * (table["area.multiply.fp32"] + table["area.add.fp32"])
    area += (te.count + ve.count + npu.dma.channels + 2) * table["area.control"]
    return math.sqrt(area) / 1000


def tiles(whole: int, tile: int) -> list[tuple[int, int]]:
    return [(start, min(tile, whole - start)) for start in range(0, whole, tile)]


class Nest:
    """Loops over tiles, with an array that is walked fold by fold."""

    def __init__(self, npu: NpuConfig, bytes_in: int, bytes_out: int) -> None:
        self.npu, self.bytes_in, self.bytes_out = npu, bytes_in, bytes_out
        self.macs = self.shifted = self.loaded = self.accumulated = self.read = self.written = self.moved = 0

    def step(self, m: int, n: int, k: int, image: int, same: bool = False) -> None:
        """One tile on the array. `image`: elements of in0 that lie in the scratchpad for it; `same`: the weights are
        those of the step before."""
        te = self.npu.te
        if te.kind == "systolic_os":  # rows x columns of out are held, k passes; in0 again for each block of columns
            for _, rows in tiles(m, te.rows):
                for _, columns in tiles(n, te.columns):
                    self.macs += rows * columns * k
                    self.shifted += rows * columns * k * (16 * self.bytes_in + 32)
            self.read += (image * -(-n // te.columns) + k * n * -(-m // te.rows)) * self.bytes_in
            self.accumulated += 2 * 4 * m * n
            return
        for _, depth in tiles(k, te.rows):  # weights are held, rows of in0 pass, sums leave at the end
            for _, columns in tiles(n, te.columns):
                if not same or k > te.rows or n > te.columns:
                    self.loaded += depth * columns * 8 * self.bytes_in
                self.macs += m * depth * columns
                self.shifted += m * depth * columns * (8 * self.bytes_in + 32)
                self.accumulated += 2 * 4 * m * columns
        self.read += (image + k * n) * self.bytes_in

    def load(self, elements: int) -> None:
        self.written += elements * self.bytes_in
        self.moved += elements * self.bytes_in

    def store(self, elements: int) -> None:
        """The result of a tile: from the array to the scratchpad, from there to DRAM."""
        size = elements * self.bytes_out
        self.written, self.read, self.moved = self.written + size, self.read + size, self.moved + size

    def energy(self, mac: float) -> dict[str, float]:
        table, npu = values("7nm"), self.npu
        per_byte = bank(table, npu.spm.size // npu.spm.banks)
        return {
            "multipliers": self.macs * mac,
            "array registers": (self.shifted + self.loaded) * table["register"],
            "accumulators": self.accumulated * bank(table, max(8192, npu.te.acc_bytes // npu.te.columns)),
            "scratchpad": (self.read + self.written) * per_byte,
            "NoC": self.moved * table["wire"] * side(table, npu),
            "DRAM": self.moved * table["dram.lpddr4"],
        }


def spent(counts: Counts, npu: NpuConfig) -> dict[str, float]:
    """pJ by unit."""
    prices = Prices(npu, read_shipped_table("7nm"), "lpddr4", "int8")
    units: dict[str, float] = {}
    for (unit, _), energy in prices.energy(counts).items():
        units[unit] = units.get(unit, 0.0) + energy
    return units


@pytest.mark.parametrize(
    ("kind", "out", "te", "order"),
    [(DataType.FP16, DataType.FP16, "systolic_ws", LoopOrder.WEIGHT),
     (DataType.INT8, DataType.INT32, "roofline", LoopOrder.OUTPUT)],
)  # fmt: skip
def test_a_product_anew(kind: DataType, out: DataType, te: str, order: LoopOrder) -> None:
    m, n, k, tile = 320, 448, 576, (128, 192, 256)
    npu = NpuConfig(te=TeConfig(kind=te))
    program = compile_layers(
        gemm(m, n, k, kind, out), target_of(npu, MappingOptions(tile=tile, loop_order=order))
    )  # fmt: skip
    assert program.graph.layers[0].integers("tile") == tile
    (work,) = works([Listed(one.descriptor, 0, one.block) for one in program.commands], npu)
    size_in, size_out = (2, 2) if kind is DataType.FP16 else (1, 4)
    nest = Nest(npu, size_in, size_out)
    stays = order is LoopOrder.WEIGHT
    for top, rows in tiles(m, tile[0]):
        for _, columns in tiles(n, tile[1]):
            for at, depth in tiles(k, tile[2]):
                nest.load(rows * depth)
                if not stays or not top:
                    nest.load(depth * columns)
                nest.step(rows, columns, depth, rows * depth, stays and top > 0)
                if stays and at + depth < k and -(-m // tile[0]) * tile[0] * tile[1] * 4 > npu.te.acc_bytes:
                    nest.written += 4 * rows * columns  # the sums of all rows do not fit into the accumulator
            nest.store(rows * columns)
    mac = 0.34 + 0.38 if kind is DataType.FP16 else 0.07 + 0.03
    assert spent(work.counts, npu) == pytest.approx(nest.energy(mac), rel=1e-9)


def test_a_convolution_anew() -> None:
    """64 channels of 16 x 16, 3 x 3 windows with a pad of 1; a tile is 4 rows of the result. Image and result are small
    and stay in the scratchpad, the weights come for every tile."""
    height, width, channels, rows = 16, 16, 64, 4
    kernel = np.ones((channels, channels, 3, 3), np.float16)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])], "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, channels, height, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, channels, height, width])],
        [helper.make_tensor("w", TensorProto.FLOAT16, kernel.shape, kernel.tobytes(), raw=True)],
    )  # fmt: skip
    tile = f"{rows * width}x{channels}x{9 * channels}"
    settings = {"compiler.tile": tile, "compiler.loop_order": "output", "npu.te.kind": "systolic_os"}
    result = Simulator(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), level="L1", settings=settings
    ).run()._result  # fmt: skip
    (work,) = (work for work in result.works if work.operation == "CONV2D_T")
    npu = result.config.npu
    nest = Nest(npu, 2, 2)
    for top, count in tiles(height, rows):
        seen = min(height, top + count + 1) - max(0, top - 1)
        nest.load(9 * channels * channels)
        nest.step(count * width, channels, 9 * channels, seen * width * channels)
        nest.written += 2 * count * width * channels
    assert spent(work.counts, npu) == pytest.approx(nest.energy(0.34 + 0.38), rel=1e-9)


ZIGZAG = {
    LoopOrder.OUTPUT: {
        "multipliers": 6_710_886.4, "array registers": 13_002.3424, "scratchpad": 6_011_935.455,
        "DRAM": 134_217_728.0, "accumulators": 8_355_840.0,
    },
    LoopOrder.WEIGHT: {
        "multipliers": 6_710_886.4, "array registers": 13_002.3424, "scratchpad": 5_448_316.506,
        "DRAM": 109_051_904.0, "accumulators": 8_355_840.0,
    },
}  # fmt: skip
"""pJ by level, of zigzag-dse 3.9.1 with our table: MatMul of 512 x 256 x 512 in int8, an array of 64 x 64 with weights
in registers, sums of 32 bits in a memory a column, a buffer for each operand, DRAM. Forced temporal orderings,
innermost first, with dimensions B, K, C = 512, 256, 512: B128 C2 C4 K4 B4, and B128 C2 B4 C4 K4."""


@pytest.mark.parametrize("order", ZIGZAG)
def test_levels_take_the_energy_that_zigzag_counts(order: LoopOrder) -> None:
    m, n, k = 512, 256, 512
    npu = NpuConfig(te=TeConfig(kind="systolic_ws"))
    mapping = MappingOptions(tile=(128, 64, 128), loop_order=order)
    program = compile_layers(gemm(m, n, k, DataType.INT8, DataType.INT32), target_of(npu, mapping))
    (work,) = works([Listed(one.descriptor, 0, one.block) for one in program.commands], npu)
    ours, theirs = spent(work.counts, npu), dict(ZIGZAG[order])
    table, folds = values("7nm"), k // npu.te.rows
    ours["array registers"] -= (
        m * n * k * (8 + 32) * table["register"]
    )  # what passes from cell to cell ZigZag leaves out
    theirs["accumulators"] *= 2 * folds / (2 * folds + 1)  # it reads a sum before the first addition too
    assert {level: ours[level] for level in theirs} == pytest.approx(theirs, rel=1e-6)


# -- tables ------------------------------------------------------------------------------------------------------------

FLOAT_KINDS = (DataType.FP32, DataType.FP16, DataType.BF16, DataType.E4M3FN)


def every_event() -> Counts:
    """Events of every kind and type."""
    found = Counts()
    for event in Event:
        kinds: list[tuple[DataType, ...]] = [()]
        if event is Event.MAC:
            kinds = [(kind, kind) for kind in (*FLOAT_KINDS, DataType.INT8)]
        if event is Event.VECTOR:
            kinds = [(kind,) for kind in (*FLOAT_KINDS, DataType.INT8, DataType.INT32)]
        found.update({Count(event, Role.ACTIVATION, kind): 1 for kind in kinds})
    return found


def outcomes(table: EnergyTable) -> list[float]:
    """What a table decides: energy with each standard and size of a bank, area with each multiplier, leakage."""
    found = []
    for size in (1 << 16, 1 << 18, 1 << 21, 1 << 24):
        npu = NpuConfig(spm=replace(NpuConfig().spm, size=size))
        for dram in table.standards:
            found.append(sum(Prices(npu, table, dram, "int8").energy(every_event()).values()))
    found += [
        sum(Prices(NpuConfig(), table, "ddr4", kind).area.values()) for kind in ("int8", "fp8", "bf16", "fp16", "fp32")
    ]
    return [*found, Prices(NpuConfig(), table, "ddr4", "int8").leakage]


@pytest.mark.parametrize("key", [key for key in read_shipped_table("7nm").values if key != "instruction"])
def test_every_key_of_a_table_acts(key: str) -> None:
    table = read_shipped_table("7nm")
    more = table._replace(values={**table.values, key: 2 * table.values[key]})
    before, after = outcomes(table), outcomes(more)
    assert after != before and all(a <= b for a, b in zip(before, after, strict=True))


def test_own_table_replaces_keys_of_its_base(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("base: 45nm\ntechnology: 40 nm\ndram:\n  mram: 5\nsram.64KiB: 3\n", encoding="utf-8")
    table = read_table(str(file))
    assert table.technology == "40 nm" and table.values["register"] == values("45nm")["register"]
    assert table.standards[-1] == "mram" and {table.sram(size) for size in (1, 4096, 65536)} == {3.0}
    assert table.sram(4 * 65536) == 6.0, "above the last point a square root of the size"


@pytest.mark.parametrize(
    ("text", "error"),
    [("regster: 1", "own.yaml:1: regster: unknown key; did you mean register"), ("register: -1", "must be a number"),
     ("register: .nan", "must be a number"), ("register: 1e12", "must be a number"), ("register: true", "must be a"),
     ("base: 5nm", "base: must be one of 45nm, 7nm"), ("base: {a: 1}", "base: must be one of 45nm, 7nm"),
     ("technology: 7", "technology: must be a word"),
     ("sram.0KiB: 1", "unknown key"), ("sram:\n  12: 1", "a key must be a word"),
     ("multiply: 3", "multiply: must be a table")],
)  # fmt: skip
def test_a_wrong_table_is_one_line(text: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=error):
        read_table(str(file))
    assert main(["run", "cnn", "--timing-only", "--set", f"energy.table={file}"]) in (64, 65)
    said = capsys.readouterr().err.strip()
    assert error in said and len(said.splitlines()) == 1


def test_a_standard_that_the_table_lacks_is_refused() -> None:
    config = load([], None, {"energy.dram": "hbm9"}).config
    with pytest.raises(BadInputError, match=r"energy\.dram = hbm9: must be one of ddr4, lpddr4, hbm2, gddr6"):
        Prices.of(config.npu, config.energy)


@pytest.mark.parametrize("name", data_files("energy_tables"))
def test_the_page_has_the_values_of_the_tables(name: str) -> None:
    rows = [[cell.strip() for cell in line.split("|")] for line in DOCS.read_text(encoding="utf-8").splitlines()]
    column = {"45nm": 2, "7nm": 3}[name]
    shown = {row[1].strip("`"): row[column] for row in rows if len(row) > 4 and row[1].startswith("`")}
    table = values(name)
    assert {key: f"{value:g}" for key, value in table.items()} == {key: shown.get(key) for key in table}
    assert {key.rpartition(".")[0] for key in table} - {""} == set(SECTIONS)


# -- results -----------------------------------------------------------------------------------------------------------


def test_a_result_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "cnn", "--timing-only", "--json"]) == 0
    energy = json.loads(capsys.readouterr().out)["energy"]
    assert energy["estimate"] is True and energy["technology"] == "7 nm"
    assert energy["total_pj"] == sum(energy["units_pj"].values()) == sum(energy["roles_pj"].values())
    commands = energy["total_pj"] - energy["units_pj"]["leakage"]
    assert commands == pytest.approx(sum(energy["layers_pj"].values()), abs=20)
    assert main(["run", "cnn", "--timing-only"]) == 0
    assert "Energy and area, an estimate" in capsys.readouterr().out


def test_dram_energy_is_that_of_its_pins_behind_an_l2() -> None:
    settings = {"npu.l2.enabled": True, "npu.l2.bypass_bytes": 1 << 20, "npu.l2.bytes": 1 << 22}
    plain, cached = (Simulator("cnn", level="L2", settings=each).run()._result for each in ({}, settings))
    assert cached.energy is not None and plain.energy is not None
    units, npu = cached.energy.by(0), cached.json["npu"]
    pins = npu["dram_bytes_read"] + npu["dram_bytes_written"]
    assert 0.9 * 64 * pins < units["DRAM"] < 1.1 * 64 * pins
    assert units["DRAM"] < plain.energy.by(0)["DRAM"]
    assert units["L2"] > 0 and cached.energy.prices.area["L2"] > 0


def test_firmware_has_an_area_and_no_energy() -> None:
    record = {"result": {"cycles": 1}, "costs": {"area": 1.5}}
    figures = select_figures(["energy", "edp", "area"])
    assert [figure.of(record) for figure in figures.values()] == [None, None, 1.5]


def test_three_figures_have_one_front() -> None:
    random = np.random.default_rng(5)
    rows = [{"point": i, "error": None, **dict(zip("abc", map(int, draw), strict=True))}
            for i, draw in enumerate(random.integers(0, 12, (200, 3)))]  # fmt: skip
    table = Table(("point",), {}, rows)
    for names in ("ab", "abc"):
        every = np.array([[row[name] for name in names] for row in rows])
        beaten = [bool(((every <= one).all(axis=1) & (every < one).any(axis=1)).any()) for one in every]
        expected = {row["point"] for row, lost in zip(rows, beaten, strict=True) if not lost}
        assert {row["point"] for row in pareto(table, *names)} == expected


def test_a_changed_table_is_another_point_and_a_report_names_it(tmp_path: Path) -> None:
    file, config = tmp_path / "own.yaml", load([], None, {"energy.table": str(tmp_path / "own.yaml")}).config
    addresses = []
    for text in ("register: 1\n", "register: 2\n"):
        file.write_text(text, encoding="utf-8")
        addresses.append(Addresses().of(CommandList("x.json"), config))
    assert addresses[0] != addresses[1]
    folder = tmp_path / "report"
    assert main(["run", "cnn", "--timing-only", "--set", f"energy.table={file}", "--report", str(folder)]) == 0
    assert str(file) in yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))["record"]["inputs_sha256"]
    assert main(["run", "--replay", str(folder), "--json"]) == 0
