"""Corrected implementations of operators that onnx.reference lacks or implements incorrectly."""

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_gemm, op_matmul, op_quantize_linear, op_slice

from toolchain.onnx_reference import Operator
from toolchain.onnx_reference.steps import GRU, LSTM, RNN
from toolchain.onnx_reference.windows import LRN, AveragePool, Conv, LpPool, MaxPool

MAX_STEPS = np.float32(1 << 20)
"""Bound in steps beyond the range of 16-bit codes."""
_NARROW = ("float16", "bfloat16")
"""16-bit types: numpy multiplies them fifty times slower than FP32, which is equally exact here."""


def _widen(*tensors: Any) -> list[Any]:
    """Convert 16-bit tensors to FP32; None is unchanged."""
    return [x.astype(np.float32) if x is not None and x.dtype.name in _NARROW else x for x in tensors]


class GlobalMaxPool(Operator):
    """GlobalMaxPool: onnx.reference reduces the wrong axes unless images are 2-D."""

    def _run(self, x: Any) -> tuple[Any]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(Operator):
    """GlobalLpPool: missing in onnx.reference."""

    def _run(self, x: Any, p: int = 2) -> tuple[Any]:
        sums = (np.abs(x.astype(np.float64)) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True)
        return ((sums ** (1 / p)).astype(x.dtype),)


class ConvTranspose(Operator):
    """ConvTranspose: onnx.reference mismatches weights and channels of groups, and takes minutes for a large image."""

    def _run(
        self, x: Any, w: Any, b: Any = None, auto_pad: Any = None, dilations: Any = None, group: Any = None,
        kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None, pads: Any = None,
        strides: Any = None,
    ) -> tuple[Any]:  # fmt: skip
        rank, groups, wide = x.ndim - 2, group or 1, np.promote_types(x.dtype, np.float32)
        steps, tap_steps, paddings = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
        same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
        sizes = [
            (length - 1) * step + (taps - 1) * dilation + 1 + after
            for length, taps, step, dilation, after in zip(
                x.shape[2:], w.shape[2:], steps, tap_steps, paddings, strict=False
            )
        ]
        begins = list(pads or [0] * 2 * rank)[:rank]
        target_sizes = output_shape or [length * step for length, step in zip(x.shape[2:], steps, strict=True)]
        if same or output_shape:
            if output_shape:
                sizes = [max(size, length) for size, length in zip(sizes, target_sizes[-rank:], strict=True)]
            cut = [max(0, size - length) for size, length in zip(sizes, target_sizes[-rank:], strict=True)]
            begins = [total // 2 if auto_pad == "SAME_UPPER" else total - total // 2 for total in cut]
        else:
            cut = [before + after for before, after in zip(begins, (pads or [0] * 2 * rank)[rank:], strict=True)]
        images = x.astype(wide).reshape(len(x), groups, -1, *x.shape[2:])
        weights = w.astype(wide).reshape(groups, -1, *w.shape[1:])
        total = np.zeros((len(x), groups, weights.shape[2], *sizes), wide)
        for at in np.ndindex(*w.shape[2:]):
            put = tuple(
                slice(place * dilation, place * dilation + (length - 1) * step + 1, step)
                for place, dilation, length, step in zip(at, tap_steps, x.shape[2:], steps, strict=True)
            )
            total[:, :, :, *put] += np.einsum("gco,bgc...->bgo...", weights[:, :, :, *at], images)
        slices = (slice(low, low + size - end) for low, size, end in zip(begins, sizes, cut, strict=True))
        product = total.reshape(len(x), -1, *sizes)[:, :, *slices]
        return ((product if b is None else product + b.reshape(-1, *(1,) * rank)).astype(x.dtype),)


class CumSum(Operator):
    """CumSum: onnx.reference does not accept a 1-element list as axis."""

    def _run(self, x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> tuple[Any]:
        along = int(np.asarray(axis).reshape(-1)[0])
        turned = np.flip(x, along) if reverse else x
        sums = np.cumsum(turned, along, dtype=x.dtype)
        if exclusive:
            sums = np.roll(sums, 1, along)
            sums[tuple(0 if at == along % x.ndim else slice(None) for at in range(x.ndim))] = 0
        return (np.flip(sums, along) if reverse else sums,)


class Gather(Operator):
    """Gather: onnx.reference fails for non-contiguous indices, up to onnx 1.22."""

    def _run(self, x: Any, indices: Any, axis: int = 0) -> tuple[Any]:
        return (np.asarray(np.take(x, indices.astype(np.int64), axis)),)


class GatherElements(Operator):
    """GatherElements: onnx.reference mishandles the last axis given as -1."""

    def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any]:
        region = tuple(slice(None if at == axis % data.ndim else size) for at, size in enumerate(indices.shape))
        return (np.take_along_axis(data[region], indices.astype(np.int64), axis),)


class Gemm(op_gemm.Gemm_7):
    """Gemm with 16-bit numbers computed like those of Conv."""

    op_domain = ""

    def _run(
        self, a: Any, b: Any, c: Any = None, alpha: Any = None, beta: Any = None, transA: Any = None,  # noqa: N803
        transB: Any = None,  # noqa: N803
    ) -> tuple[Any]:  # fmt: skip
        left, right, added = _widen(a, b, c)
        (result,) = super()._run(left, right, added, alpha, beta, transA, transB)
        return (result.astype(a.dtype, copy=False),)


class MatMul(op_matmul.MatMul):
    """MatMul with 16-bit numbers computed like those of Conv."""

    op_domain = ""

    def _run(self, a: Any, b: Any) -> tuple[Any]:
        left, right = _widen(a, b)
        (result,) = super()._run(left, right)
        return (result.astype(a.dtype, copy=False),)


class LogSoftmax(Operator):
    """LogSoftmax: onnx.reference computes exponentials in 16 bits."""

    def _run(self, x: Any, axis: int = -1) -> tuple[Any]:
        moved = x.astype(np.promote_types(x.dtype, np.float32))
        moved = moved - moved.max(axis=axis, keepdims=True)
        return ((moved - np.log(np.exp(moved).sum(axis=axis, keepdims=True))).astype(x.dtype),)


class LpNormalization(Operator):
    """LpNormalization: onnx.reference sums signed numbers for p = 1."""

    def _run(self, x: Any, axis: int = -1, p: int = 2) -> tuple[Any]:
        wide = x.astype(np.promote_types(x.dtype, np.float32))
        norm = (np.abs(wide) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
        return ((wide / np.where(norm == 0, 1, norm)).astype(x.dtype),)


class OneHot(Operator):
    """OneHot: onnx.reference does not accept a 1-element list as depth."""

    def _run(self, indices: Any, depth: Any, values: Any, axis: int = -1) -> tuple[Any]:
        size, rank = int(np.asarray(depth).reshape(-1)[0]), indices.ndim + 1
        places = indices.astype(np.int64)
        places = np.expand_dims(np.where(places < 0, places + size, places), axis % rank)
        classes = np.arange(size).reshape([-1 if at == axis % rank else 1 for at in range(rank)])
        return (np.where(places == classes, values[1], values[0]).astype(values.dtype),)


class Pad(Operator):
    """Pad: onnx.reference does not support negative widths, which crop."""

    def _run(
        self, data: Any, pads: Any, constant_value: Any = None, axes: Any = None, mode: Any = "constant"
    ) -> tuple[Any]:  # fmt: skip
        widths, region = [(0, 0)] * data.ndim, [slice(None)] * data.ndim
        pairs = pads.reshape(2, -1).T.tolist()
        for axis, (before, after) in zip(range(data.ndim) if axes is None else axes, pairs, strict=True):
            widths[axis] = (max(before, 0), max(after, 0))
            region[axis] = slice(max(-before, 0), data.shape[axis] + min(after, 0))
        options: dict[str, Any] = (
            {"constant_values": 0 if constant_value is None else constant_value} if mode == "constant" else {}
        )
        return (np.pad(data[tuple(region)], widths, mode, **options).astype(data.dtype),)


class QLinearMatMul(Operator):
    """QLinearMatMul: onnx.reference wraps codes beyond the type, up to onnx 1.21."""

    def _run(
        self, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, scale: Any, zero: Any
    ) -> tuple[Any]:  # fmt: skip
        sums = np.matmul(a.astype(np.int32) - a_zero.astype(np.int32), b.astype(np.int32) - b_zero.astype(np.int32))
        codes, limits = np.rint(sums * (a_scale * b_scale / scale) + zero), np.iinfo(zero.dtype)
        return (np.clip(codes, limits.min, limits.max).astype(zero.dtype),)


class QuantizeLinear(op_quantize_linear.QuantizeLinear_23):
    """QuantizeLinear: onnx.reference returns the smallest code for numbers beyond 32-bit steps."""

    op_domain = ""

    def _run(  # type: ignore[override]  # its attributes are passed on
        self, x: Any, scale: Any, zero: Any = None, **attributes: Any
    ) -> tuple[Any]:  # fmt: skip
        if zero is None or zero.dtype.kind in "iu":
            limit = (
                np.abs(op_quantize_linear._reshape_input(scale, x.shape, attributes["axis"], attributes["block_size"]))
                * MAX_STEPS
            )
            x = np.clip(x, -limit, limit).astype(x.dtype)
        result: tuple[Any] = super()._run(x, scale, *(() if zero is None else (zero,)), **attributes)
        return result


class ReduceLogSumExp(Operator):
    """ReduceLogSumExp: onnx.reference does not accept a scalar."""

    def _run(self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> tuple[Any]:
        if (axes is None or not len(axes)) and noop_with_empty_axes:
            return (x,)
        along = None if axes is None or not len(axes) else tuple(int(axis) for axis in axes)
        largest = x.max(axis=along, keepdims=True)
        offset = np.where(np.isfinite(largest), largest, 0)
        sums = np.log(np.exp(x - offset).sum(axis=along, keepdims=True)) + offset
        return (np.asarray(sums if keepdims else sums.squeeze(along)).astype(x.dtype),)


class ReduceSumSquare(Operator):
    """ReduceSumSquare: onnx.reference returns INT64 for INT32."""

    def _run(self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> tuple[Any]:
        all_axes = axes is None or not len(axes)
        along = () if all_axes and noop_with_empty_axes else None if all_axes else tuple(int(axis) for axis in axes)
        return (np.asarray(np.square(x).sum(axis=along, keepdims=bool(keepdims), dtype=x.dtype)),)


class Slice(op_slice.SliceCommon):
    """Slice: for a negative step, onnx.reference returns nothing if the start is before the first element; it must be
    clamped to that."""

    op_domain = ""

    def _run(self, data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> tuple[Any]:
        if steps is not None:
            sizes = np.array(data.shape)[np.arange(len(starts)) if axes is None else axes]
            starts = np.where(np.asarray(steps) < 0, np.maximum(starts, -sizes), starts)
        return (super()._run(data, starts, ends, axes, steps)[0],)


class Softsign(Operator):
    """Softsign: onnx.reference does not accept a scalar."""

    def _run(self, x: Any) -> tuple[Any]:
        return (np.asarray(x / (1 + np.abs(x))),)


class STFT(Operator):
    """STFT: onnx.reference derives the number of frames from the batch if a signal has no last dimension of 1."""

    def _run(
        self, signal: Any, frame_step: Any, window: Any = None, frame_length: Any = None, onesided: int = 1
    ) -> tuple[Any]:  # fmt: skip
        size = len(window) if frame_length is None else int(frame_length)
        flat = signal[..., 0] + 1j * signal[..., 1] if signal.shape[-1:] == (2,) and signal.ndim == 3 else signal
        flat = flat.reshape(flat.shape[:2])
        frames = np.lib.stride_tricks.sliding_window_view(flat, size, axis=1)[:, :: int(frame_step)]
        spectrum = np.fft.fft(frames if window is None else frames * window, axis=-1)
        spectrum = spectrum[..., : size // 2 + 1] if onesided else spectrum
        return (np.stack([spectrum.real, spectrum.imag], axis=-1).astype(signal.dtype),)


CORRECTED: list[type[OpRun]] = [
    AveragePool, Conv, ConvTranspose, CumSum, Gather, GatherElements, Gemm, GlobalLpPool, GlobalMaxPool, GRU,
    LogSoftmax, LpNormalization, LpPool, LRN, LSTM, MatMul, MaxPool, OneHot, Pad, QLinearMatMul, QuantizeLinear,
    ReduceLogSumExp, ReduceSumSquare, RNN, Slice, Softsign, STFT,
]  # fmt: skip
"""All corrected operators."""
