"""Thresholds: order statistics, their mean, the file form, and files that are refused."""

import json
from typing import Any

import numpy as np
import pytest

from npu_device.abi.errors import NpuDeviceError
from npu_device.kv_quant.thresholds import Profiler, Thresholds, order_statistics, parse


def test_normal_samples_give_the_quantiles_of_the_normal_distribution() -> None:
    """O3: 2 % on each side, and the 6 % around the median."""
    random, made = np.random.default_rng(0), Profiler()
    for _ in range(20):
        for side in ("key", "value"):
            made.add(0, side, random.standard_normal((64, 512)))
    for found in made.thresholds()[0]:
        assert found == pytest.approx((-2.054, -0.0753, 0.0753, 2.054), rel=0.01, abs=0.004)


def test_the_order_of_samples_does_not_matter() -> None:
    random = np.random.default_rng(3)
    runs = [random.standard_t(5, 1000) for _ in range(5)]
    made = []
    for order in (runs, runs[::-1]):
        profiler = Profiler()
        for sample in order:
            profiler.add(0, "key", sample)
            profiler.add(0, "value", -sample)
        made.append(profiler.document())
    assert made[0] == made[1]


def test_quantiles_are_elements_of_the_sample() -> None:
    """numpy's methods `higher` and `lower` are the reference."""
    sample = np.random.default_rng(5).standard_normal(997).astype(np.float32)
    upper, lower = order_statistics(sample)
    for index, taken in enumerate((0.04, 0.94)):
        assert upper[index] == np.float16(np.quantile(sample, 1 - taken / 2, method="higher"))
        assert lower[index] == np.float16(np.quantile(sample, taken / 2, method="lower"))


def document(**changes: Any) -> str:
    side = {"upper_threshold": [[2.0, 0.1, 0.0]] * 2, "lower_threshold": [[-2.0, -0.1, 0.0]] * 2}
    return json.dumps({"n_quant_group": 3, "key": side, "value": side, **changes})


def test_a_file_is_read() -> None:
    found = parse(document(), "t.json")
    assert len(found) == 2
    assert found[1].key == Thresholds(-2.0, float(np.float16(-0.1)), float(np.float16(0.1)), 2.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "t.json: no JSON"),
        ("[" * 100_000, "t.json: no JSON"),
        (document(value={"upper_threshold": [[10**400, 1]] * 2, "lower_threshold": [[-1, 0]] * 2}),
         "value: layer 0: outer_high inf: must be a finite fp16 number"),
        (document(n_quant_group=2), "n_quant_group must be 3"),
        (document(key={"upper_threshold": [[2.0, 0.1]]}), "key.lower_threshold: must be a list"),
        (document(key={"upper_threshold": [[2.0, 0.1]], "lower_threshold": [[-2.0, -0.1]]}), "1 layers of keys and 2"),
        (document(key={"upper_threshold": [[1, 2]] * 2, "lower_threshold": [[-1, 0]] * 2}),
         "key: layer 0: inner_high 2.0 is above the next threshold 1.0"),
        (document(value={"upper_threshold": [[float("nan"), 1]] * 2, "lower_threshold": [[-1, 0]] * 2}),
         "value: layer 0: outer_high nan: must be a finite fp16 number"),
        (document(value={"upper_threshold": [[2, 1]] * 2, "lower_threshold": [[-1, 0]]}), "layer 1 is missing"),
        (document(value={"upper_threshold": [["2", 1]] * 2, "lower_threshold": [[-1, 0]] * 2}),
         r"is not \[outer, inner"),
    ],
)  # fmt: skip
def test_wrong_files(text: str, said: str) -> None:
    with pytest.raises(NpuDeviceError, match=said):
        parse(text, "t.json")


def test_ratios_sum_to_one_and_samples_are_numbers() -> None:
    with pytest.raises(NpuDeviceError, match=r"their sum is 0\.9, must be 1"):
        Profiler((0.04, 0.80, 0.06))
    with pytest.raises(NpuDeviceError, match="NaN or infinite"):
        Profiler().add(0, "key", np.array([1.0, np.nan]))
    made = Profiler()
    made.add(0, "key", np.ones(4))
    with pytest.raises(NpuDeviceError, match="layer 0 has no sample of its values"):
        made.document()


def test_each_layer_has_its_own_rows() -> None:
    """A layer without samples between others is named."""
    profiler = Profiler()
    for layer in (1, 0):
        for side in ("key", "value"):
            profiler.add(layer, side, np.arange(1000) * (layer + 1))
    first, second = profiler.thresholds()
    assert (first.key.outer_high, second.key.outer_high) == (980.0, 1960.0)
    profiler.add(3, "key", np.arange(1000))
    with pytest.raises(NpuDeviceError, match="layer 2"):
        profiler.document()
