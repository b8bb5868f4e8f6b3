"""Macro forms of the vector engine and of GATHER, against numpy and onnx.reference."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from image_cases import attributes, nchw, out_size, shapes
from npu_macro import MacroRig, block, random
from npu_rig import BUFFER
from onnx_reference import reference
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Epilogue
from npu_device.abi.opcodes import DataType, Eltwise, Norm, Opcode, Pool, Reduce
from npu_device.memory.operands import row_bytes
from npu_device.operations.tile_form import Broadcast
from npu_device.trace.events import What

T = DataType
Array = np.ndarray[Any, Any]

locations = st.sampled_from(("dram", "spm"))
SHAPES = {Broadcast.FULL: (1, 1), Broadcast.ROW: (0, 1), Broadcast.COLUMN: (1, 0), Broadcast.SCALAR: (0, 0)}


def run(rig: MacroRig, d: Descriptor, rows: int, columns: int, kind: DataType, own: dict[str, Any] | None = None,
        place: str = "dram", **shared: Any) -> Array:  # fmt: skip
    """One command with a result of rows x columns of `kind`."""
    out = rig.place(rows * row_bytes(columns, kind), place)
    rig.execute(d.with_(out_addr=out, type_out=kind), block(Opcode(d.opcode), own, **shared))
    return rig.get(out, rows, columns, kind)


def sized(broadcast: Broadcast, m: int, n: int) -> tuple[int, int]:
    high, wide = SHAPES[broadcast]
    return (m if high else 1), (n if wide else 1)


@settings(max_examples=draws(40), deadline=None)
@given(
    st.sampled_from((Eltwise.ADD, Eltwise.MUL, Eltwise.MAX, Eltwise.LESS, Eltwise.WHERE)),
    st.tuples(*[st.sampled_from(list(Broadcast))] * 3), st.integers(1, 20), st.integers(1, 20),
    st.tuples(st.integers(1, 9), st.integers(1, 9)), st.sampled_from((T.FP32, T.INT8, T.INT32)), locations, locations,
    st.integers(0, 2),
)  # fmt: skip
def test_eltwise_with_broadcast(
    function: Eltwise, broadcasts: tuple[Broadcast, ...], m: int, n: int, tile: tuple[int, int], kind: DataType,
    source: str, target: str, prefetch: int,
) -> None:  # fmt: skip
    rig = MacroRig()
    shapes_ = [sized(one, m, n) for one in broadcasts]
    where = function is Eltwise.WHERE
    kinds = (T.UINT8 if where else kind, kind, kind)
    a, b, c = (random(one, *shape, index) for index, (one, shape) in enumerate(zip(kinds, shapes_, strict=True)))
    if where:
        a = a % 2
    d = Descriptor(
        opcode=Opcode.ELTWISE, function=function, tile_m=tile[0], tile_n=tile[1], type_in0=kinds[0], type_in1=kind,
        in0_addr=rig.put(a, kinds[0], source), in1_addr=rig.put(b, kind, source), prefetch_dist=prefetch,
    )  # fmt: skip
    own = {"broadcast0": broadcasts[0], "broadcast1": broadcasts[1], "broadcast2": broadcasts[2] if where else 0}
    out = T.UINT8 if function is Eltwise.LESS else kind
    got = run(rig, d, m, n, out, own, target, m=m, n=n, in2=rig.put(c, kind) if where else 0)
    with np.errstate(over="ignore"):
        expected = {
            Eltwise.ADD: lambda: a + b, Eltwise.MUL: lambda: a * b, Eltwise.MAX: lambda: np.maximum(a, b),
            Eltwise.LESS: lambda: (a < b).astype(np.uint8), Eltwise.WHERE: lambda: np.where(a != 0, b, c),
        }[function]()  # fmt: skip
    assert np.array_equal(got, np.broadcast_to(expected, (m, n)))


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantize_and_dequantize_per_channel_are_those_of_onnx(per_channel: bool) -> None:
    rig = MacroRig()
    x = random(T.FP32, 6, 10, 1)
    scale = np.random.default_rng(2).uniform(0.01, 0.1, 10 if per_channel else 1).astype(np.float32)
    words = {"m": 6, "n": 10, "scale": rig.put(scale[None], T.FP32)}
    words["epilogue"] = Epilogue.PER_CHANNEL if per_channel else 0
    d = Descriptor(opcode=Opcode.ELTWISE, function=Eltwise.QUANT, tile_m=4, tile_n=4, type_in0=T.FP32,
                   in0_addr=rig.put(x, T.FP32))  # fmt: skip
    q = run(rig, d, 6, 10, T.INT8, zero_point=(0, 0, 0, 5), **words)
    zero = np.full(scale.shape, 5, np.int8)
    scales, zeros = (scale, zero) if per_channel else (scale[0], zero[0])
    assert np.array_equal(q, reference("QuantizeLinear", x, np.array(scales), np.array(zeros), axis=1))
    d = Descriptor(opcode=Opcode.ELTWISE, function=Eltwise.DEQUANT, tile_m=4, tile_n=4, type_in0=T.INT8,
                   in0_addr=rig.put(q, T.INT8))  # fmt: skip
    back = run(rig, d, 6, 10, T.FP32, zero_point=(5, 0, 0, 0), **words)
    assert np.allclose(back, reference("DequantizeLinear", q, np.array(scales), np.array(zeros), axis=1), rtol=1e-6)


@pytest.mark.parametrize(("function", "op"), [(Eltwise.SIN, "Sin"), (Eltwise.COS, "Cos"), (Eltwise.ERF, "Erf"),
                                              (Eltwise.SIGMOID, "Sigmoid"), (Eltwise.TANH, "Tanh"),
                                              (Eltwise.LOG, "Log"), (Eltwise.FLOOR, "Floor"), (Eltwise.CEIL, "Ceil"),
                                              (Eltwise.ROUND, "Round"), (Eltwise.MISH, "Mish"),
                                              (Eltwise.HARD_SWISH, "HardSwish")])  # fmt: skip
def test_functions_are_those_of_onnx(function: Eltwise, op: str) -> None:
    rig = MacroRig()
    x = random(T.FP32, 5, 7, 1)
    d = Descriptor(opcode=Opcode.ELTWISE, function=function, tile_m=4, tile_n=4, type_in0=T.FP32,
                   in0_addr=rig.put(x, T.FP32))  # fmt: skip
    got = run(rig, d, 5, 7, T.FP32, m=5, n=7)
    assert np.allclose(got, reference(op, x), rtol=1e-5, atol=1e-7, equal_nan=True)


TOLERANCE = {T.FP32: 1e-5, T.FP16: 2e-3, T.BF16: 2e-2}


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization", "Softmax", "Gelu", "GeluTanh"])
def test_operations_on_rows_are_those_of_onnx(op: str, kind: DataType) -> None:
    rig = MacroRig()
    x, gamma, beta = random(kind, 7, 24, 1), random(kind, 1, 24, 2), random(kind, 1, 24, 3)
    wide, g, b = (one.astype(np.float32) for one in (x, gamma[0], beta[0]))
    epsilon = int(np.float32(1e-5).view(np.uint32))
    d = Descriptor(tile_m=3, type_in0=kind, in0_addr=rig.put(x, kind, distance=64 * row_bytes(1, kind)))
    words = {"m": 7, "n": 24, "ld0": 64 * row_bytes(1, kind)}
    if op.endswith("Normalization"):
        rms = op.startswith("RMS")
        d = d.with_(opcode=Opcode.LAYERNORM, function=Norm.RMS if rms else Norm.LAYER, param0=epsilon, type_in1=kind,
                    in1_addr=rig.put(gamma, kind))  # fmt: skip
        if rms:
            expected = reference(op, wide, g, axis=-1, epsilon=1e-5)
        else:
            words |= {"bias": rig.put(beta, kind), "epilogue": Epilogue.BIAS}
            expected = reference(op, wide, g, b, axis=-1, epsilon=1e-5)
    elif op == "Softmax":
        d, expected = d.with_(opcode=Opcode.SOFTMAX, tile_n=24), reference(op, wide)
    else:
        tanh = op == "GeluTanh"
        d = d.with_(opcode=Opcode.GELU, tile_n=5, param0=int(tanh))
        expected = reference("Gelu", wide, approximate="tanh" if tanh else "none")
    got = run(rig, d, 7, 24, kind, **words).astype(np.float64)
    assert np.abs(got - expected).max() <= TOLERANCE[kind] * np.abs(expected).max()


@settings(max_examples=draws(30), deadline=None)
@given(shapes, st.integers(1, 6), st.booleans(), st.sampled_from((T.FP32, T.FP16, T.UINT8)), st.booleans())
def test_pooling(s: dict[str, int], channels: int, average: bool, kind: DataType, pads: bool) -> None:
    assume(min(out_size(s)) > 0 and not (average and kind is T.UINT8))
    rig = MacroRig()
    x = random(kind, s["batch"] * s["h"] * s["w"], channels, 1)
    p, q = out_size(s)
    d = Descriptor(opcode=Opcode.POOL, function=Pool.AVG if average else Pool.MAX, tile_m=5, tile_n=2, type_in0=kind,
                   in0_addr=rig.put(x, kind))  # fmt: skip
    own = {f"pool_{name}": value for name, value in s.items()} | {"channels": channels}
    own["count_pads"] = int(average and pads)
    if any(not seen for _, seen in windows(s)):
        ticket = rig.submit(rig.macro(d.with_(type_out=kind), block(Opcode.POOL, own)))
        rig.idle()
        assert rig.status(ticket) == 4 | TicketError.SHAPE << 8
        return
    got = run(rig, d, s["batch"] * p * q, channels, kind, own)
    rows = slide(x.astype(np.float64).reshape(s["batch"], s["h"], s["w"], channels), s, average, pads)
    assert np.allclose(got.astype(np.float64), rows, rtol=TOLERANCE.get(kind, 0), atol=1e-5)


def windows(s: dict[str, int]) -> list[tuple[int, list[tuple[int, int]]]]:
    """(elements, those in the image) of each window, in the order of the result."""
    made = []
    for top in range(-s["pt"], -s["pt"] + out_size(s)[0] * s["sh"], s["sh"]):
        for left in range(-s["pl"], -s["pl"] + out_size(s)[1] * s["sw"], s["sw"]):
            pixels = [(top + i * s["dh"], left + j * s["dw"]) for i in range(s["kh"]) for j in range(s["kw"])]
            made.append((len(pixels), [(i, j) for i, j in pixels if 0 <= i < s["h"] and 0 <= j < s["w"]]))
    return made


def slide(images: Array, s: dict[str, int], average: bool, pads: bool) -> Array:
    """Window by window, as rows of pixels. (onnx.reference fails on many pads and dilations.)"""
    rows = []
    for image in images:
        for count, seen in windows(s):
            values = [image[place] for place in seen]
            mean = np.sum(values, axis=0) / (count if pads else len(seen))
            rows.append(mean if average else np.max(values, axis=0))
    return np.array(rows)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_usual_pooling_is_that_of_onnx(op: str) -> None:
    rig = MacroRig()
    s = {"batch": 1, "h": 9, "w": 8, "kh": 3, "kw": 3, "sh": 2, "sw": 2, "dh": 1, "dw": 1, "pt": 1, "pl": 1}
    s |= {"pb": 1, "pr": 1}
    x = random(T.FP32, 72, 4, 1)
    d = Descriptor(opcode=Opcode.POOL, function=Pool.AVG if op == "AveragePool" else Pool.MAX, tile_m=7, tile_n=4,
                   type_in0=T.FP32, in0_addr=rig.put(x, T.FP32))  # fmt: skip
    p, q = out_size(s)
    own = {f"pool_{name}": value for name, value in s.items()} | {"channels": 4}
    got = run(rig, d, p * q, 4, T.FP32, own)
    expected = reference(op, nchw(x.reshape(1, 9, 8, 4)), **attributes(s))
    assert np.allclose(got, expected.transpose(0, 2, 3, 1).reshape(-1, 4), rtol=1e-6)


@pytest.mark.parametrize("function", list(Reduce))
@pytest.mark.parametrize(("m", "n", "k"), [(5, 9, 0), (3, 7, 6), (1, 49, 10)])
@pytest.mark.parametrize("kind", [T.FP32, T.INT8])
def test_reduction_over_the_middle(function: Reduce, m: int, n: int, k: int, kind: DataType) -> None:
    if function is Reduce.MEAN and kind is T.INT8:
        return
    rig = MacroRig()
    x = random(kind, m * n, max(1, k), 1)
    d = Descriptor(opcode=Opcode.REDUCE, function=function, tile_m=2, tile_n=0 if not k else 4, type_in0=kind,
                   in0_addr=rig.put(x if k else x.reshape(m, n), kind))  # fmt: skip
    out = T.INT32 if function is Reduce.ARGMAX or (function is Reduce.SUM and kind is T.INT8) else kind
    got = run(rig, d, m, max(1, k), out, m=m, n=n, k=k)
    wide = x.astype(np.float64).reshape(m, n, max(1, k))
    expected = {Reduce.SUM: np.sum, Reduce.MEAN: np.mean, Reduce.MAX: np.max, Reduce.ARGMAX: np.argmax}[function](
        wide, axis=1
    )
    assert np.allclose(got, expected, rtol=1e-6)


def strides(shape: tuple[int, ...], size: int) -> list[int]:
    steps = [size]
    for dim in reversed(shape[1:]):
        steps.insert(0, steps[0] * dim)
    return steps


@settings(max_examples=draws(40), deadline=None)
@given(st.tuples(*[st.integers(1, 4)] * 4), st.permutations(range(4)), st.sampled_from((T.INT8, T.FP16, T.FP32)),
       st.tuples(st.integers(1, 70), st.integers(1, 4)), st.tuples(*[st.booleans()] * 4), locations)  # fmt: skip
def test_a_copy_transposes_and_reverses(
    shape: tuple[int, ...], order: list[int], kind: DataType, tile: tuple[int, int], reverse: tuple[bool, ...],
    place: str,
) -> None:  # fmt: skip
    rig = MacroRig()
    size = row_bytes(1, kind)
    x = random(kind, int(np.prod(shape)), 1, 1).reshape(shape)
    at = rig.put(x.reshape(1, -1), kind, place)
    step = strides(shape, size)
    taken = [-step[axis] if reverse[axis] else step[axis] for axis in order]
    start = at + sum(step[axis] * (shape[axis] - 1) for axis in range(4) if reverse[axis])
    result = tuple(shape[axis] for axis in order)
    own = {"dim3": result[3], "stride_in": taken, "stride_out": strides(result, size)}
    d = Descriptor(opcode=Opcode.COPY, tile_m=tile[0], tile_n=tile[1], type_in0=kind, in0_addr=start)
    got = run(rig, d, 1, x.size, kind, own, m=result[0], n=result[1], k=result[2])
    flipped = x[tuple(slice(None, None, -1 if back else 1) for back in reverse)]
    assert got.tobytes() == np.ascontiguousarray(flipped.transpose(order)).tobytes()


def test_a_copy_expands_and_writes_into_the_gaps_of_a_concatenation() -> None:
    rig = MacroRig()
    left, right = random(T.INT8, 4, 3, 1), random(T.INT8, 1, 5, 2)
    out = rig.place(32)
    rig.memory.write_bytes(out, bytes([0x77]) * 36)
    d = Descriptor(opcode=Opcode.COPY, tile_m=8, tile_n=8, type_in0=T.INT8)
    for source, width, steps, at in ((left, 3, (0, 0, 3, 1), 0), (right, 5, (0, 0, 0, 1), 3)):
        own = {"dim3": width, "stride_in": steps, "stride_out": (36, 36, 9, 1)}
        rig.execute(d.with_(in0_addr=rig.put(source, T.INT8), out_addr=out + at), block(Opcode.COPY, own, k=4))
    got = np.frombuffer(rig.bytes_at(out, 36), np.int8).reshape(4, 9)
    assert np.array_equal(got[:, :8], np.hstack((left, np.repeat(right, 4, axis=0))))
    assert (got[:, 8] == 0x77).all()


def test_a_copy_onto_itself_is_refused() -> None:
    rig = MacroRig()
    own = {"dim3": 4, "stride_in": (0, 0, 4, 1), "stride_out": (0, 0, 2, 1)}
    at = rig.place(64)
    d = Descriptor(opcode=Opcode.COPY, tile_m=8, tile_n=8, type_in0=T.INT8, in0_addr=at, out_addr=at)
    ticket = rig.submit(rig.macro(d, block(Opcode.COPY, own, k=4)))
    rig.idle()
    assert rig.status(ticket) == 4 | TicketError.SHAPE << 8


def gather(indices: list[int], kind: DataType = T.FP16, place: str = "dram") -> tuple[MacroRig, Array, int, int]:
    rig = MacroRig()
    table = random(kind, 9, 6, 1)
    out = rig.place(len(indices) * row_bytes(6, kind), place)
    index = rig.put(np.array([indices], np.int32), T.INT32)
    d = Descriptor(opcode=Opcode.GATHER, tile_m=3, type_in0=kind, type_in1=T.INT32, type_out=kind, in1_addr=index,
                   out_addr=out, in0_addr=rig.put(table, kind, distance=16), write_status=1)  # fmt: skip
    ticket = rig.submit(rig.macro(d, block(Opcode.GATHER, m=len(indices), n=6, k=9, ld0=16)))
    rig.idle()
    return rig, table, out, rig.status(ticket)


@pytest.mark.parametrize("place", ["dram", "spm"])
@pytest.mark.parametrize("kind", [T.FP16, T.INT4])
def test_gather_takes_rows_and_counts_from_the_end(kind: DataType, place: str) -> None:
    indices = [3, 0, 8, -1, 3, -9, 5]
    rig, table, out, status = gather(indices, kind, place)
    assert status == 3
    assert np.array_equal(rig.get(out, 7, 6, kind), table[indices])


@pytest.mark.parametrize("index", [9, -10])
def test_an_index_beyond_the_table_is_an_error_ticket(index: int) -> None:
    rig, _, out, status = gather([1, index])
    assert status == 4 | TicketError.ADDRESS << 8
    (entry,) = rig.device.error_log
    assert f"index 1 is {index}" in entry.reason and entry.cycle == rig.stamps(What.ERROR)[entry.ticket]
    assert rig.bytes_at(BUFFER + 56, 4) == (2 | TicketError.ADDRESS << 8).to_bytes(4, "little")
    assert not rig.get(out, 2, 6, T.FP16).any()
