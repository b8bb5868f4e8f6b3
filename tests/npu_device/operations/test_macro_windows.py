"""CONV2D_T and POOL in macro form, against onnx.reference."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from image_cases import Array, attributes, nchw, out_size, shapes
from npu_macro import MacroRig, block, random
from onnx_reference import reference
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.opcodes import Activation, DataType, Opcode
from npu_device.cost.plan import Compute, Transfer, buffers
from npu_device.cost.sequencer import Bus
from npu_device.operations.macro.base import Setting
from npu_device.operations.macro.windows import ConvMacro
from npu_device.operations.windows import Windows, max_pixels, patch

T = DataType


def conv(x: Array, w: Array, s: dict[str, int], groups: int) -> Array:
    """fp64 Conv of NHWC images and weights (kh, kw, Cin / groups, Cout), as rows of pixels."""
    y = reference("Conv", nchw(x), np.ascontiguousarray(w.transpose(3, 2, 0, 1)), group=groups, **attributes(s))
    return y.transpose(0, 2, 3, 1).reshape(-1, w.shape[3])


SIZES = (*[(1, 9)] * 3, *[(1, 4)] * 2, *[(1, 3)] * 2, *[(1, 2)] * 2, *[(0, 2)] * 4)
"""Least and largest of each field of Windows."""


@given(st.tuples(*(st.integers(*limits) for limits in SIZES)), st.integers(1, 800))
def test_the_most_pixels_of_a_tile_are_those_of_all_tiles(sizes: tuple[int, ...], rows: int) -> None:
    shape = Windows(*sizes)
    assume(shape.p > 0 and shape.q > 0)
    starts = np.arange(0, shape.pixels, rows)
    assert max_pixels(shape, rows) == patch(shape, starts, np.minimum(rows, shape.pixels - starts))[1].max()


@given(st.tuples(*(st.integers(*limits) for limits in SIZES)), st.integers(1, 30))
def test_windows_of_a_pixel_move_no_other(sizes: tuple[int, ...], rows: int) -> None:
    """Their first pixel is the one that they see, and the last lies in the images."""
    shape = Windows(*sizes[:3], 1, 1, *sizes[5:9], 0, 0, 0, 0)
    assume(shape.single)
    grid = np.arange(shape.batch * shape.h * shape.w).reshape(shape.batch, shape.h, shape.w)
    seen = grid[:, :: shape.sh, :: shape.sw].reshape(-1)
    starts = np.arange(0, shape.pixels, rows)
    first, pixels = patch(shape, starts, np.minimum(rows, shape.pixels - starts))
    assert (first == seen[starts]).all() and pixels.sum() == len(seen)
    assert (first + (pixels - 1) * shape.step < grid.size).all()


def test_bounds_of_a_large_batch_take_no_memory() -> None:
    """As many tiles as there are pixels, of 2^40 images."""
    assert max_pixels(Windows(1 << 40, 8, 8, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1), 1) == 24


@settings(max_examples=draws(40), deadline=None)
@given(
    shapes, st.sampled_from((1, 2, 3)), st.integers(1, 4), st.integers(1, 4), st.booleans(),
    st.sampled_from((T.UINT8, T.INT8, T.FP32, T.FP16, T.BF16, T.E4M3FN, T.E5M2)), st.integers(0, 1), st.booleans(),
    st.integers(0, 2), st.integers(0, 3),
)  # fmt: skip
def test_convolution(
    s: dict[str, int], groups: int, cin: int, cout: int, nk: bool, kind: DataType, order: int, spm: bool,
    prefetch: int, together: int,
) -> None:  # fmt: skip
    """Tiles have two filters, or so many groups together."""
    p, q = out_size(s)
    assume(p > 0 and q > 0)
    tile = together * cout or 2
    assume(tile <= cout or tile % cout == 0)
    cin, cout = cin * groups, cout * groups
    integer = kind in (T.UINT8, T.INT8)
    weight_kind = T.INT8 if integer else kind
    out_kind = T.INT32 if integer else T.FP32
    x = random(kind, s["batch"] * s["h"] * s["w"], cin, 1)
    w = random(weight_kind, s["kh"] * s["kw"] * cin // groups, cout, 2)
    rig = MacroRig()
    zeros = (3, -2, 0, 0) if integer else (0, 0, 0, 0)
    d = Descriptor(
        opcode=Opcode.CONV2D_T, tile_m=5, tile_n=tile, tile_k=4, type_in0=kind, type_in1=weight_kind, type_out=out_kind,
        in0_addr=rig.put(x, kind, "spm" if spm else "dram"), in1_addr=rig.put(w.T if nk else w, weight_kind),
        out_addr=rig.place(s["batch"] * p * q * cout * 4), in1_nk=int(nk), prefetch_dist=prefetch,
    )  # fmt: skip
    own = {**s, "cin": cin, "cout": cout, "groups": groups}
    rig.execute(d, block(Opcode.CONV2D_T, own, zero_point=zeros, loop_order=order))
    got = rig.get(d.out_addr, s["batch"] * p * q, cout, out_kind)
    images = (x.astype(np.float64) - zeros[0]).reshape(s["batch"], s["h"], s["w"], cin)
    kernel = (w.astype(np.float64) - zeros[1]).reshape(s["kh"], s["kw"], cin // groups, cout)
    expected = conv(images, kernel, s, groups)
    if integer:
        assert np.array_equal(got, expected)
    else:
        assert np.abs(got - expected).max() <= 1e-5 * max(np.abs(expected).max(), 1)


def residual_block() -> tuple[MacroRig, Descriptor, Extended, Array]:
    """A quantized 3 x 3 layer with everything; its expected result."""
    s = {"batch": 1, "h": 7, "w": 9, "kh": 3, "kw": 3, "sh": 1, "sw": 1, "dh": 1, "dw": 1}
    s |= {"pt": 1, "pl": 1, "pb": 1, "pr": 1}
    x, w = random(T.UINT8, 63, 16, 1), random(T.INT8, 144, 8, 2)
    residual, scale = random(T.UINT8, 63, 8, 3), np.float32(0.0021)
    bias = np.arange(8, dtype=np.int32)[None] * 100
    rig = MacroRig()
    d = Descriptor(
        opcode=Opcode.CONV2D_T, tile_m=16, tile_n=8, tile_k=64, type_in0=T.UINT8, type_in1=T.INT8, type_out=T.UINT8,
        in0_addr=rig.put(x, T.UINT8), in1_addr=rig.put(w, T.INT8), out_addr=rig.place(63 * 8), prefetch_dist=1,
    )  # fmt: skip
    made = block(
        Opcode.CONV2D_T, {**s, "cin": 16, "cout": 8, "groups": 1}, zero_point=(128, 0, 10, 5),
        in2=rig.put(residual, T.UINT8), bias=rig.put(bias, T.INT32),
        scale=rig.put(np.array([[scale, 0.5]], np.float32), T.FP32),
        epilogue=Epilogue.BIAS | Epilogue.RESIDUAL | Epilogue.REQUANTIZE | Activation.RELU,
    )  # fmt: skip
    total = conv(x.reshape(1, 7, 9, 16).astype(float) - 128, w.reshape(3, 3, 16, 8).astype(float), s, 1) + bias
    value = np.maximum(total * np.float64(scale) + (residual.astype(float) - 10) * 0.5, 0)
    return rig, d, made, np.clip(np.rint(value + 5), 0, 255)


def test_a_quantized_layer_with_bias_residual_and_relu() -> None:
    rig, d, made, expected = residual_block()
    rig.execute(d, made)
    assert np.array_equal(rig.get(d.out_addr, 63, 8, T.UINT8), expected)


@pytest.mark.parametrize(("lowering", "depths"), [("im2col", [64, 64, 16]), ("kernel_position", [16] * 9)])
def test_lowering_changes_steps_and_nothing_else(lowering: str, depths: list[int]) -> None:
    rig, d, made, _ = residual_block()
    macro = rig.decoded(d, made)
    assert isinstance(macro, ConvMacro)
    plan = macro.plan(Setting(Bus(64, 128), lambda distance: buffers("full", distance), lowering))
    steps = [plan.pieces[index] for index in plan.piece]
    computes = [step for step in steps if isinstance(step, Compute)]
    assert [step.k for step in computes] == depths * 4
    assert sum(step.m * step.n * step.k for step in computes) == 63 * 8 * 144
    patch = macro.reserved.slots(1)["in0"].addresses
    moved = [step for step in steps if isinstance(step, Transfer) and step.spm.address in patch]
    assert len(moved) == 4  # a patch per tile of pixels, in two buffers
    assert sum(step.payload for step in steps if isinstance(step, Transfer) and step.write) == 63 * 8


@pytest.mark.parametrize(
    ("depth", "size"), [(8, 16 * 8), (16, 16 * 16), (20, 27 * 16), (144, 27 * 16)],
    ids=("half the channels", "one position", "two positions", "all positions"),
)  # fmt: skip
def test_a_step_reads_the_pixels_and_channels_of_its_k_tile(depth: int, size: int) -> None:
    """The first tile has 16 results, whose windows cover 3 x 9 pixels of 16 channels, a byte each."""
    rig, d, made, _ = residual_block()
    macro = rig.decoded(d.with_(tile_k=depth), made)
    plan = macro.plan(Setting(Bus(64, 128), lambda distance: buffers("full", distance), "im2col"))
    pieces = (plan.pieces[index] for index in plan.piece)
    first = next(piece for piece in pieces if isinstance(piece, Compute))
    assert first.reads[0].payload == size


def test_a_tile_that_ends_within_a_group_is_a_shape_error() -> None:
    rig, d, made, _ = residual_block()
    own = made.words(Opcode.CONV2D_T) | {"groups": 4}
    ticket = rig.submit(rig.macro(d.with_(tile_n=3, type_out=T.INT32), block(Opcode.CONV2D_T, own)))
    rig.idle()
    assert rig.status(ticket) & 0xFF == 4
    assert "tile_n 3: beyond cout / groups 2 it must be a multiple" in rig.device.error_log[0].reason


def test_a_window_that_does_not_fit_is_a_shape_error() -> None:
    rig, d, made, _ = residual_block()
    own = made.words(Opcode.CONV2D_T) | {"kh": 12}
    ticket = rig.submit(rig.macro(d, block(Opcode.CONV2D_T, own)))
    rig.idle()
    assert rig.status(ticket) & 0xFF == 4
    assert "does not fit" in rig.device.error_log[0].reason
