"""`pyv-npu reproduce oaken`: the rooflines against the table of the specification, schedule, claims, page."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyv_npu.cli.main import main
from pyv_npu.errors import UsageError
from pyv_npu.kv_quant.ablations import VARIANTS, ablations, ratio_sweep
from pyv_npu.kv_quant.schedule import Engines, step
from pyv_npu.kv_quant.synthetic import HEAD_DIM, RATIO_SWEEP, errors, layer
from pyv_npu.kv_quant.systems import (
    A100,
    LPU_LPDDR,
    OAKEN,
    OAKEN_HBM,
    OAKEN_LPDDR,
    QSERVE,
    System,
    fits,
    kv_token_bytes,
    longest,
    throughput,
)
from pyv_npu.studies.reproductions.oaken import BATCHES, CALIBRATED, CITED, SIX, claims, decoding
from toolchain.decoders.shapes import shape_of

TOKENS_PER_SECOND = {
    A100.name: (
        (1226, 1642, 1642, 1794, 1881), (698, 970, 970, 970, 970), (1835, 3097, 4722, 6344, 6344),
        (417, 683, 683, 683, 683), (341, 664, 1285, 2414, 2414), (226, 440, 440, 440, 440),
    ),
    OAKEN_LPDDR.name: (
        (1029, 1678, 2449, 3179, 3548), (554, 930, 1409, 1897, 2157), (1157, 2174, 3876, 6370, 8209),
        (251, 439, 700, 996, 996), (189, 370, 725, 1394, 2586), (126, 247, 478, 896, 1288),
    ),
    QSERVE.name: (
        (1923, 3191, 4758, 6254, 6254), (1031, 1758, 2718, 2718, 3147), (2123, 4017, 7255, 11946, 11946),
        (497, 929, 1644, 2629, 2629), (345, 681, 1349, 2651, 5121), (231, 459, 903, 903, 1192),
    ),
}  # fmt: skip
"""Decoding alone, computed independently for the specification (55, 2.3)."""


@pytest.mark.parametrize("system", [A100, OAKEN_LPDDR, QSERVE], ids=lambda one: one.name)
def test_the_rooflines_are_those_of_the_specification(system: System) -> None:
    for name, wanted in zip(SIX, TOKENS_PER_SECOND[system.name], strict=True):
        found = [throughput(system, shape_of(name), batch) for batch in BATCHES]
        assert found == pytest.approx(wanted, rel=0.002, abs=1)


def test_sizes_and_capacities() -> None:
    """Specification 55, 2.1: KiB of a token, requests of 2K tokens, longest sequences of 16 requests."""
    kib = {"llama2-7b": 154.3, "llama2-13b": 240.9, "llama2-70b": 97.9, "opt-30b": 404.3, "mistral-7b": 39.1}
    for name, wanted in kib.items():
        assert kv_token_bytes(shape_of(name), OAKEN) / 1024 == pytest.approx(wanted, abs=0.1)
    requests = {"llama2-7b": (749, 205), "llama2-13b": (455, 106), "opt-30b": (231, 23), "mistral-7b": (2941, 797)}
    for name, (large, small) in requests.items():
        assert fits(OAKEN_LPDDR, shape_of(name)) == pytest.approx(large, abs=1)
        assert fits(OAKEN_HBM, shape_of(name)) == pytest.approx(small, abs=1)
    tokens = [longest(one, shape_of("llama2-13b"), 16) for one in (A100, QSERVE, OAKEN_HBM, LPU_LPDDR, OAKEN_LPDDR)]
    assert tokens == pytest.approx([4118, 15501, 13672, 17545, 58257], abs=1)
    assert throughput(OAKEN_HBM, shape_of("llama2-70b"), 16) == 0


def test_engines_hide_while_they_are_fast_enough() -> None:
    """O20: twice as fast changes less than 1 %; below the rate of the memory the step is bound by them."""
    base = decoding(64)
    for engines in (Engines(w_q=2), Engines(w_dq=128), Engines(w_dq=32)):
        assert abs(decoding(64, engines).total / base.total - 1) < 0.01
    slow = decoding(64, Engines(w_dq=4))
    assert slow.dequantize_busy > slow.reads and slow.dequantize_exposed == slow.dequantize_busy - slow.reads + 8
    apart = decoding(64, Engines(overlap=False))
    assert apart.total == apart.weights + apart.reads + apart.other + apart.quantize_busy + apart.dequantize_exposed
    assert base.total < apart.total
    plain = decoding(64, system=LPU_LPDDR)
    assert (plain.quantize_busy, plain.dequantize_busy) == (0, 0) and plain.reads > 3 * base.reads


def test_more_requests_than_cores_take_rounds() -> None:
    shape = shape_of("llama2-7b")
    made = [step(OAKEN_LPDDR, shape, [64] * count, Engines(cores=4)) for count in (4, 5, 8, 9)]
    assert [one.rounds for one in made] == [1, 2, 2, 3]
    assert made[1].quantize_busy == 2 * made[0].quantize_busy
    with pytest.raises(UsageError, match="no request"):
        step(OAKEN_LPDDR, shape, [], Engines())
    with pytest.raises(UsageError, match="cores 0: must be at least 1"):
        Engines(cores=0)


def test_errors_on_synthetic_keys_and_values() -> None:
    """Specification 55, 2.4: the safe bounds."""
    for seed in (0, 1):
        found = {one.method: one for one in errors(seed)}
        oaken = found["oaken"]
        assert 4.87 < oaken.bits < 4.90
        assert oaken.keys < 0.35 * found["per_token4"].keys and oaken.keys < 0.55 * found["qserve"].keys
        assert oaken.keys < 1.3 * found["kvquant"].keys
        assert oaken.values < 0.45 * found["per_token4"].values
        assert oaken.values < 0.7 * found["qserve"].values and oaken.values < 0.7 * found["kivi"].values
        assert oaken.keys < found["per_token5"].keys and oaken.bits < found["per_token5"].bits


def test_no_ratio_is_better_in_bits_and_errors_than_that_of_the_paper() -> None:
    """The knee at 4/90/6: what takes fewer bits by more than the noise of a token has larger errors of keys."""
    sweep = ratio_sweep([layer()], RATIO_SWEEP)
    knee = next(one for one in sweep if (one.outer, one.inner) == (0.04, 0.06))
    assert all(one.keys > knee.keys for one in sweep if one.b_eff < knee.b_eff - 0.01)


def test_what_each_part_brings() -> None:
    """Specification 55, 2.4: without the outer group errors are several times as large; without the inner one small
    elements are lost, which the error of all does not show; one group is the uniform quantizer."""
    for seed in (0, 1):
        both = layer(seed)
        found = {row.variant: row for row in ablations([both], HEAD_DIM)}
        assert tuple(found) == VARIANTS
        base, known = found["oaken"], found["side known"]
        assert known.keys < base.keys < 1.2 * known.keys and known.bits == pytest.approx(base.bits, abs=1e-6)
        assert found["no outer group"].keys > 3 * known.keys and found["no outer group"].values > 2.5 * known.values
        for narrow in (found["no inner group"], found["two groups 10/90"]):
            assert narrow.keys < 1.15 * known.keys and narrow.inner_keys > 20 * known.inner_keys
        assert found["extremes of a call"].keys > 1.3 * known.keys
        assert found["no group shift"].bits == pytest.approx(base.bits, abs=1e-6)
        uniform = next(one for one in errors(seed) if one.method == "per_token4")
        assert (found["per_token4"].keys, found["per_token4"].values) == pytest.approx((uniform.keys, uniform.values))


def test_the_claims() -> None:
    rows = list(claims())
    assert [row.id for row in rows] == [f"P{number}" for number in range(1, 18)]
    assert [row.id for row in rows if row.kind == CALIBRATED] == ["P5", "P7", "P8"]
    assert (
        [row.id for row in rows if row.met is None] == [row.id for row in rows if row.kind == CITED] == ["P14", "P15"]
    )
    assert all(row.met for row in rows if row.kind != CITED)
    assert all(row.constants for row in rows if row.kind == CALIBRATED)


@pytest.mark.slow
def test_the_command_and_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "oaken", "--json", "--report", str(tmp_path / "out")]) == 0
    made: Any = json.loads(capsys.readouterr().out)
    assert made["exact"] and len(made["claims"]) == 17
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    for text in ("Figure 4", "Figure 11", "Figure 12", "Figure 13", "Figure 14", "calibrated", "NOT MET"):
        assert (text in page) is (text != "NOT MET")
