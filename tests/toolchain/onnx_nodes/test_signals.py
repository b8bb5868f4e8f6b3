"""Transforms of signals, and images sampled on a grid; onnxruntime is the reference."""

from typing import Any

import numpy as np
import pytest
from onnxruntime_reference import agree, by_onnxruntime, near, one_node, random

from toolchain.errors import ModelError
from toolchain.onnx_model.reference import evaluate


def check(operator: str, inputs: dict[str, Any], **how: Any) -> None:
    agree(one_node(operator, inputs, **how), inputs)


@pytest.mark.parametrize(("onesided", "parts"), [(0, 1), (1, 1), (0, 2)])
@pytest.mark.parametrize("length", [None, 6, 12])
def test_a_transform(onesided: int, parts: int, length: int | None) -> None:
    given = {"axis": np.array(1)} if length is None else {"length": np.array(length), "axis": np.array(1)}
    order = ["x", "" if length is None else "length", "axis"]
    check("DFT", {"x": random(2, 8, 3, parts)}, constants=given, order=order, onesided=onesided)


def test_an_inverse_transform_and_one_of_opset_17() -> None:
    check("DFT", {"x": random(2, 8, 2)}, constants={"axis": np.array(-2)}, order=["x", "", "axis"], inverse=1)
    check("DFT", {"x": random(2, 8, 2)}, opset=17, axis=1)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_frames_of_a_signal(onesided: int, windowed: bool) -> None:
    window = {"window": random(8, seed=4)} if windowed else {}
    order = ["x", "step", "window" if windowed else "", "length"]
    constants = {"step": np.array(3), "length": np.array(8), **window}
    check("STFT", {"x": random(2, 20, 1)}, constants=constants, order=order, onesided=onesided)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_an_image_on_a_grid(mode: str, padding: str, aligned: int) -> None:
    given = {"x": random(2, 3, 4, 5), "grid": random(2, 3, 4, 2, seed=5) * np.float32(1.4)}
    check("GridSample", given, opset=16, mode=mode, padding_mode=padding, align_corners=aligned)


CORNERS = np.array(
    [
        [0, 0, 8, 6],
        [1.3, 2.2, 7.7, 4.9],
        [-9, -4, 20, 31],
        [3, 3, 3, 3],
        [5.5, 1, 6, 1.25],
        [12, 9, 30, 40],
        [0, 0, 1, 99],
    ],
    np.float32,
)
"""Regions of images of 6 x 8: whole, inside, far beyond every border, empty, small, outside, long."""


@pytest.mark.parametrize(("mode", "sampling"), [("avg", 0), ("avg", 1), ("avg", 3), ("max", 1), ("max", 2)])
@pytest.mark.parametrize("turned", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("images", "scale"), [(1, 1.0), (3, 0.7)])
def test_bins_of_regions(mode: str, sampling: int, turned: str, images: int, scale: float) -> None:
    given = {"x": random(images, 5, 6, 8), "r": CORNERS, "b": np.arange(len(CORNERS)) % images}
    check("RoiAlign", given, opset=16, mode=mode, sampling_ratio=sampling, coordinate_transformation_mode=turned,
          spatial_scale=scale, output_height=2, output_width=3)  # fmt: skip


def test_bins_of_regions_of_an_old_operator_set() -> None:
    given = {"x": random(1, 2, 6, 8), "r": CORNERS[:3], "b": np.zeros(3, np.int64)}
    check("RoiAlign", given, opset=11, output_height=3, output_width=3)


@pytest.mark.parametrize(
    ("operator", "inputs", "how", "message"),
    [
        ("DFT", {"x": random(1, 8200, 1)}, {"opset": 17}, "a transform of 8200 numbers: supported are up to 8192"),
        ("DFT", {"x": random(1, 8, 2)}, {"opset": 17, "onesided": 1}, "one-sided DFT requires real input"),
        ("GridSample", {"x": random(1, 1, 3, 3, 3), "grid": random(1, 2, 2, 2, 3)}, {}, "3 dimensions: supported are"),
        ("GridSample", {"x": random(1, 1, 3, 3), "grid": random(1, 2, 2, 2)}, {"mode": "area"}, "mode area"),
        (
            "RoiAlign",
            {"x": random(1, 1, 6, 8), "r": CORNERS, "b": np.zeros(7, np.int64)},
            {"mode": "max"},
            "mode=max with sampling_ratio=0: supported are avg",
        ),
    ],
)
def test_what_is_not_supported_is_refused(operator: str, inputs: Any, how: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        agree(one_node(operator, inputs, **how), inputs)
    assert "\n" not in str(caught.value)


def test_frames_are_onesided_where_nothing_is_said() -> None:
    constants = {"step": np.array(3), "length": np.array(8)}
    check("STFT", {"x": random(2, 20, 1)}, constants=constants, order=["x", "step", "", "length"], opset=17)


@pytest.mark.parametrize("shape", [(2, 20), (1, 20, 1), (2, 20, 2)])
@pytest.mark.parametrize("onesided", [0, 1])
def test_our_reference_of_frames_is_that_of_numpy(shape: tuple[int, ...], onesided: int) -> None:
    if shape[-1] == 2 and onesided:
        pytest.skip("complex signals have both sides")
    constants = {"step": np.array(3), "window": random(8, seed=4)}
    proto = one_node("STFT", {"x": random(*shape)}, constants=constants, opset=17, onesided=onesided)
    (made,) = evaluate(proto, ["y"], {"x": random(*shape)}).values()
    want = by_onnxruntime(proto, {"x": random(*shape)})["y"]
    near(made, want, 1e-5, "y")
