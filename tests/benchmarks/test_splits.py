"""More tensor engines, clusters and other resources are never slower: `scripts/bench models --only splits`."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.models import splits
from benchmarks.runner import main
from npu_device.config import NpuConfig

MODELS = [name for name in splits.MODELS if name != f"{splits.DECODER} decode"]  # whose layers are equal


def test_what_one_more_costs_is_in_percent_of_what_it_took() -> None:
    assert splits.worst([200, 100, 102, 101]) == 2
    assert splits.worst([200, 100]) == -50
    assert splits.with_count("clusters", 3).clusters == splits.with_count("te.count", 3).te.count == 3


def test_a_study_is_drawn_on_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"te.count": [200, 100, 102], "spm.banks": [50, 40]}
    monkeypatch.setitem(splits.STUDIES, "resources", ({"te.count": (1, 2, 4), "spm.banks": (1, 2)}, ["gemm"]))
    monkeypatch.setattr(splits, "cycles", lambda name, axis: counts[axis])
    page = tmp_path / "page.html"
    assert main(["models", "--only", "resources", "--page", str(page)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "gemm +2.00 200 100 102" in printed and "gemm -20.00 50 40" in printed
    text = page.read_text()
    for axis in ("te.count", "spm.banks"):
        assert f"Cycles by npu.{axis}" in text and "parts of the cycles at 1" in text
    with pytest.raises(SystemExit, match="add --only splits or resources"):
        main(["models", "--page", str(page)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "axis"),
    [(name, axis) for name in MODELS for axis in splits.AXES],
)
def test_one_more_is_never_slower(name: str, axis: str) -> None:
    cycles = splits.cycles(name, axis)
    assert splits.worst(cycles) <= splits.LIMIT, cycles


@pytest.mark.slow
@pytest.mark.parametrize("axis", splits.RESOURCES)
@pytest.mark.parametrize("name", splits.RESOURCE_MODELS)
def test_more_of_a_resource_is_never_slower(name: str, axis: str) -> None:
    cycles = splits.cycles(name, axis)
    assert splits.worst(cycles) <= splits.LIMIT, cycles


@pytest.mark.slow
@pytest.mark.parametrize("axis", splits.AXES)
def test_a_token_is_never_slower_where_the_dram_is_fast(axis: str) -> None:
    fast = 1_638_400_000_000
    default = NpuConfig()
    config = NpuConfig(
        dram=replace(default.dram, bytes_per_second=fast), noc=replace(default.noc, bytes_per_second=fast)
    )
    cycles = splits.cycles(f"{splits.DECODER} decode, 2 layers", axis, config)
    assert splits.worst(cycles) <= splits.LIMIT, cycles
    assert axis != "clusters" or cycles[-1] < 0.8 * cycles[0]
