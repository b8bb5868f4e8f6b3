"""What a command list means: numpy, one command after the other in the order of acceptance.

Written from docs/interface.md, docs/descriptor.md and docs/numerics.md, without the device's kernels, hazards, decoder,
accumulators or memory. It knows nothing of time.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from sequential_encoded import EncodedTokens, Half, half

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Eltwise, Norm, Opcode, Pool, Reduce

Array = np.ndarray[Any, Any]
T = DataType
WHOLE: dict[int, str] = {T.FP32: "<f4", T.FP16: "<f2", T.INT32: "<i4", T.INT8: "i1", T.UINT8: "u1"}
PACKED: dict[int, tuple[int, bool]] = {T.INT4: (4, True), T.UINT4: (4, False), T.INT2: (2, True)}
NAN = {T.FP32: 0x7FC0_0000, T.FP16: 0x7E00}
RANGE = {T.INT32: (-(2**31), 2**31 - 1), T.INT8: (-128, 127), T.UINT8: (0, 255), T.INT4: (-8, 7), T.UINT4: (0, 15),
         T.INT2: (-2, 1)}  # fmt: skip


def row_bytes(columns: int, kind: int) -> int:
    bits = PACKED[kind][0] if kind in PACKED else 8 * np.dtype(WHOLE[kind]).itemsize
    return -(-columns * bits // 8)


def number(bits: int) -> np.float32:
    return np.array([bits], "<u4").view("<f4")[0]


def signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def fitted(values: Array, kind: int) -> Array:
    """Numbers to a type: floats rounded once, integers modulo the range."""
    if kind not in RANGE:
        return floats(values, kind)
    low, high = RANGE[T(kind)]
    return (values.astype(np.int64) - low) % (high - low + 1) + low


def clipped(values: Array, kind: int) -> Array:
    """Numbers to an integer type, at most its ends; not-a-number is 0."""
    values = np.where(np.isnan(values), 0.0, values)
    return np.clip(values, *RANGE[T(kind)]).astype(np.int64)


def floats(values: Array, kind: int) -> Array:
    """Numbers rounded to a float type; there is one not-a-number."""
    made = values.astype(np.float32).astype(WHOLE[kind])
    return np.where(np.isnan(made), np.array(NAN[T(kind)], f"<u{made.itemsize}").view(made.dtype), made)


def extreme(made: Array, kind: int) -> Array:
    """What a maximum or minimum gives: a zero is positive."""
    return made if kind in RANGE else floats(np.where(made == 0, 0.0, made), kind)


class Sequential:
    """Memories by base address, sums by cluster and output address."""

    def __init__(self, memories: dict[int, Array]) -> None:
        self.memories = {base: data.copy() for base, data in memories.items()}
        self.sums: dict[tuple[int, int], Array] = {}

    # -- memory ------------------------------------------------------------------------------------------------

    def _at(self, address: int, size: int) -> Array:
        base = max(base for base in self.memories if base <= address)
        data = self.memories[base][address - base : address - base + size]
        assert len(data) == size, "the generator stays in memory"
        return data

    def get(self, address: int, rows: int, columns: int, kind: int, stride: int = 0) -> Array:
        size = row_bytes(columns, kind)
        made = []
        for row in range(rows):
            data = self._at(address + row * (stride or size), size)
            if kind in WHOLE:
                made.append(np.frombuffer(data.tobytes(), WHOLE[kind]))
                continue
            bits, negative = PACKED[kind]
            values = [int(byte) >> at & (1 << bits) - 1 for byte in data for at in range(0, 8, bits)][:columns]
            made.append(np.array([v - (1 << bits) if negative and v >> bits - 1 else v for v in values], np.int64))
        return np.stack(made)

    def put(self, address: int, values: Array, kind: int, stride: int = 0) -> None:
        rows, columns = values.shape
        size = row_bytes(columns, kind)
        for row in range(rows):
            if kind in WHOLE:
                data = values[row].astype(WHOLE[kind]).tobytes()
            else:
                bits, _ = PACKED[kind]
                packed = [0] * size
                for index, value in enumerate(values[row].tolist()):
                    packed[index * bits // 8] |= (int(value) & (1 << bits) - 1) << index * bits % 8
                data = bytes(packed)
            self._at(address + row * (stride or size), size)[:] = np.frombuffer(data, np.uint8)

    # -- commands ----------------------------------------------------------------------------------------------

    def execute(self, d: Descriptor, block: Extended | None) -> bool:
        """False when the command ends in an error, without an effect."""
        name = Opcode(d.opcode).name.lower()
        forms: Callable[..., bool | None] = getattr(self, f"_{name}_macro" if block is not None else f"_{name}")
        with np.errstate(all="ignore"):
            return forms(d, *(() if block is None else (block,))) is not False

    def _nop(self, d: Descriptor) -> None:
        pass

    _barrier = _core = _nop

    def _move(self, d: Descriptor, first: int, second: int) -> None:
        size = row_bytes(d.tile_k, d.type_in0)
        rows = [self._at(d.in0_addr + i * (first or size), size).copy() for i in range(d.tile_m)]
        for i, row in enumerate(rows):
            self._at(d.out_addr + i * (second or size), size)[:] = row

    def _load(self, d: Descriptor) -> None:
        self._move(d, d.param0, d.param1)

    _copy = _load

    def _store(self, d: Descriptor) -> None:
        self._move(d, d.param1, d.param0)

    def _gemm_t(self, d: Descriptor) -> bool | None:
        a = self.get(d.in0_addr, d.tile_m, d.tile_k, d.type_in0)
        b = self.get(d.in1_addr, *((d.tile_n, d.tile_k) if d.in1_nk else (d.tile_k, d.tile_n)), d.type_in1)
        total = self._product(a, b.T if d.in1_nk else b)
        key = d.cluster, d.out_addr
        if d.accumulate:
            if key not in self.sums or self.sums[key].shape != total.shape:
                return False
            total = fitted(self.sums[key].astype(np.int64) + total, T.INT32)
        if d.function:
            self.sums[key] = total
            return None
        if d.accumulate:
            del self.sums[key]
        if d.type_out in (T.INT8, T.UINT8):
            scaled = np.rint(total.astype(np.float64) * np.float64(number(d.param0)) + signed(d.param1))
            total = clipped(scaled, d.type_out)
        self.put(d.out_addr, total, d.type_out)
        return None

    @staticmethod
    def _product(a: Array, b: Array) -> Array:
        """Integers exactly and modulo 2^32, floats rounded to fp32."""
        if a.dtype.kind == "f":
            terms = a.astype(np.float64)[:, :, None] * b.astype(np.float64)[None]
            return floats(terms.sum(axis=1), T.FP32)
        return fitted(np.einsum("mk,kn->mn", a.astype(np.int64), b.astype(np.int64)), T.INT32)

    def _gemm_t_macro(self, d: Descriptor, e: Extended) -> None:
        a = self.get(d.in0_addr, e.m, e.k, d.type_in0, e.ld0)
        b = self.get(d.in1_addr, *((e.n, e.k) if d.in1_nk else (e.k, e.n)), d.type_in1, e.ld1)
        self.put(d.out_addr, self._product(a, b.T if d.in1_nk else b), d.type_out, e.ldo)

    def _conv2d_t_macro(self, d: Descriptor, e: Extended) -> None:
        w = e.words(Opcode.CONV2D_T)
        image = self.get(d.in0_addr, w["h"] * w["w"], w["cin"], d.type_in0).reshape(w["h"], w["w"], -1)
        kernel = self.get(d.in1_addr, w["kh"] * w["kw"] * w["cin"], w["cout"], d.type_in1)
        made = []
        for window in self._windows(w, "", image, 0):
            made.append(window.reshape(-1).astype(np.int64) @ kernel.astype(np.int64))
        self.put(d.out_addr, fitted(np.stack(made), T.INT32), d.type_out)

    @staticmethod
    def _windows(w: dict[str, int], prefix: str, image: Array, pad: float | None) -> list[Array]:
        """What each window sees, row by row; pads are left out where `pad` is None."""

        def word(name: str) -> int:
            return int(w[prefix + name])

        h, wide, _ = image.shape
        rows = (h + word("pt") + word("pb") - word("dh") * (word("kh") - 1) - 1) // word("sh") + 1
        columns = (wide + word("pl") + word("pr") - word("dw") * (word("kw") - 1) - 1) // word("sw") + 1
        found = []
        for p in range(rows):
            for q in range(columns):
                seen = []
                for i in range(word("kh")):
                    for j in range(word("kw")):
                        y = p * word("sh") + i * word("dh") - word("pt")
                        x = q * word("sw") + j * word("dw") - word("pl")
                        if 0 <= y < h and 0 <= x < wide:
                            seen.append(image[y, x])
                        elif pad is not None:
                            seen.append(np.full(image.shape[2], pad))
                found.append(np.stack(seen))
        return found

    def _pooled(self, d: Descriptor, w: dict[str, int], prefix: str, channels: int) -> None:
        h, wide = w[prefix + "h"], w[prefix + "w"]
        image = self.get(d.in0_addr, h * wide, channels, d.type_in0).reshape(h, wide, -1)
        seen = self._windows(w, prefix, image, None)
        if d.function == Pool.MAX:
            made = extreme(np.stack([window.max(axis=0) for window in seen]), d.type_out)
        else:
            made = np.stack([window.astype(np.float64).sum(axis=0) / len(window) for window in seen])
        self.put(d.out_addr, fitted(made, d.type_out) if d.function == Pool.AVG else made, d.type_out)

    def _pool(self, d: Descriptor) -> None:
        names = ("kh", "kw", "sh", "sw", "pt", "pl", "pb", "pr")
        taps = dict(zip(names, [*d.param0.to_bytes(4, "little"), *d.param1.to_bytes(4, "little")], strict=True))
        self._pooled(d, taps | {"h": d.tile_m, "w": d.tile_n, "dh": 1, "dw": 1}, "", d.tile_k)

    def _pool_macro(self, d: Descriptor, e: Extended) -> None:
        w = e.words(Opcode.POOL)
        self._pooled(d, w, "pool_", w["channels"])

    def _eltwise(self, d: Descriptor) -> None:
        m, n = d.tile_m, d.tile_n
        a = self.get(d.in0_addr, m, n, d.type_in0)
        if d.function == Eltwise.WHERE:
            chosen, kept = self.get(d.in1_addr, m, n, d.type_in1), self.get(d.out_addr, m, n, d.type_out)
            self.put(d.out_addr, np.where(a != 0, chosen, kept), d.type_out)
            return
        shape = {0: (m, n), 1: (1, n), 2: (m, 1), 3: (1, 1)}
        b = self.get(d.in1_addr, *shape[d.param1], d.type_in1) if d.type_in1 else a
        self.put(d.out_addr, self._element(d, a, b, d.param0, d.param1), d.type_out)

    def _element(self, d: Descriptor, a: Array, b: Array, param0: int, param1: int) -> Array:
        """Of one function on elements that broadcast."""
        f, kind = Eltwise(d.function), d.type_out
        integer = d.type_in0 in RANGE
        x: Array = a.astype(np.int64 if integer else np.float32)
        y: Array = b.astype(np.int64 if integer else np.float32)
        match f:
            case Eltwise.ADD | Eltwise.SUB | Eltwise.MUL:
                made = x + y if f is Eltwise.ADD else x - y if f is Eltwise.SUB else x * y
            case Eltwise.MAX | Eltwise.MIN:
                made = extreme(np.maximum(x, y) if f is Eltwise.MAX else np.minimum(x, y), d.type_in0)
            case Eltwise.DIV:
                made = x / y if not integer else np.where(
                    y == 0, 0, np.trunc(x / np.where(y == 0, 1, y))).astype(np.int64)  # fmt: skip
            case Eltwise.REM:
                sizes = np.abs(x), np.abs(y)
                made = (np.where(y == 0, x, np.sign(x) * (sizes[0] % np.where(y == 0, 1, sizes[1]))) if integer
                        else np.copysign(np.remainder(*sizes), x))  # fmt: skip
            case Eltwise.AND | Eltwise.OR | Eltwise.XOR:
                made = x & y if f is Eltwise.AND else x | y if f is Eltwise.OR else x ^ y
            case Eltwise.SHL | Eltwise.SHR:
                places = np.where((y < 0) | (y > 31), 32, y)
                made = x << places if f is Eltwise.SHL else x >> places
            case Eltwise.EQUAL:
                made = (x == y).astype(np.int64)
            case Eltwise.GREATER:
                made = (x > y).astype(np.int64)
            case Eltwise.LESS:
                made = (x < y).astype(np.int64)
            case Eltwise.RELU:
                made = extreme(np.where(x < 0, 0, x), d.type_in0)
            case Eltwise.CLIP:
                made = np.minimum(np.maximum(x, signed(param0)), signed(param1))
            case Eltwise.CAST:
                if integer:
                    return fitted(x, kind) if kind in RANGE else x.astype(WHOLE[kind])
                return clipped(np.trunc(x.astype(np.float64)), kind) if kind in RANGE else fitted(x, kind)
            case Eltwise.QUANT:
                if integer:
                    scaled = np.rint(x.astype(np.float64) * np.float64(number(param0)) + signed(param1))
                    return clipped(scaled, kind)
                scaled = np.rint((x / number(param0)).astype(np.float32)).astype(np.float64)
                return clipped(scaled + signed(param1), kind)
            case Eltwise.DEQUANT:
                made = (x - signed(param1)) * np.float64(number(param0))
            case Eltwise.EXP:
                made = np.exp(x.astype(np.float64))
            case _:
                raise AssertionError(f)
        return fitted(made, kind)

    def _eltwise_macro(self, d: Descriptor, e: Extended) -> None:
        w = e.words(Opcode.ELTWISE)
        shape = {0: (e.m, e.n), 1: (1, e.n), 2: (e.m, 1), 3: (1, 1)}
        a = self.get(d.in0_addr, *shape[w["broadcast0"]], d.type_in0)
        b = self.get(d.in1_addr, *shape[w["broadcast1"]], d.type_in1)
        made = self._element(d, a, b, 0, 0)
        self.put(d.out_addr, np.broadcast_to(made, (e.m, e.n)), d.type_out, e.ldo)

    def _normed(self, d: Descriptor, x: Array, gamma: Array, beta: Array | None) -> Array:
        wide = x.astype(np.float64)
        if d.function == Norm.LAYER:
            wide = wide - wide.mean(axis=1, keepdims=True)
        y = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + float(number(d.param0))) * gamma.astype(float)
        return fitted(y if beta is None else y + beta.astype(float), d.type_out)

    def _layernorm(self, d: Descriptor) -> None:
        x = self.get(d.in0_addr, d.tile_m, d.tile_n, d.type_in0)
        rows = self.get(d.in1_addr, 1 if d.function == Norm.RMS else 2, d.tile_n, d.type_in1)
        self.put(d.out_addr, self._normed(d, x, rows[0], rows[1] if len(rows) > 1 else None), d.type_out)

    def _layernorm_macro(self, d: Descriptor, e: Extended) -> None:
        x = self.get(d.in0_addr, e.m, e.n, d.type_in0)
        self.put(d.out_addr, self._normed(d, x, self.get(d.in1_addr, 1, e.n, d.type_in1)[0], None), d.type_out)

    def _soft(self, d: Descriptor, m: int, n: int) -> None:
        x = self.get(d.in0_addr, m, n, d.type_in0).astype(np.float64)
        y = np.exp(x - x.max(axis=1, keepdims=True))
        self.put(d.out_addr, fitted(y / y.sum(axis=1, keepdims=True), d.type_out), d.type_out)

    def _softmax(self, d: Descriptor) -> None:
        self._soft(d, d.tile_m, d.tile_n)

    def _softmax_macro(self, d: Descriptor, e: Extended) -> None:
        self._soft(d, e.m, e.n)

    def _bell(self, d: Descriptor, m: int, n: int) -> None:
        x = self.get(d.in0_addr, m, n, d.type_in0).astype(np.float64)
        turned = np.array([[math.erf(v) for v in row] for row in (x / np.sqrt(2)).tolist()])
        self.put(d.out_addr, fitted(x / 2 * (1 + turned), d.type_out), d.type_out)

    def _gelu(self, d: Descriptor) -> None:
        self._bell(d, d.tile_m, d.tile_n)

    def _gelu_macro(self, d: Descriptor, e: Extended) -> None:
        self._bell(d, e.m, e.n)

    def _reduced(self, d: Descriptor, x: Array) -> Array:
        """Along axis 1."""
        match d.function:
            case Reduce.MAX:
                return extreme(x.max(axis=1), d.type_out)
            case Reduce.ARGMAX:
                return x.argmax(axis=1)
            case Reduce.SUM if d.type_in0 in RANGE:
                return fitted(x.astype(np.int64).sum(axis=1), d.type_out)
            case _:
                total = x.astype(np.float64).sum(axis=1)
                return fitted(total / x.shape[1] if d.function == Reduce.MEAN else total, d.type_out)

    def _reduce(self, d: Descriptor) -> None:
        x = self.get(d.in0_addr, d.tile_m, d.tile_n, d.type_in0)
        self.put(d.out_addr, self._reduced(d, x)[:, None], d.type_out)

    def _reduce_macro(self, d: Descriptor, e: Extended) -> None:
        x = self.get(d.in0_addr, e.m * e.n, e.k, d.type_in0).reshape(e.m, e.n, e.k)
        self.put(d.out_addr, self._reduced(d, x), d.type_out)

    def _copy_macro(self, d: Descriptor, e: Extended) -> None:
        w = e.words(Opcode.COPY)
        size = row_bytes(1, d.type_in0)
        steps = list(np.ndindex(max(1, e.m), max(1, e.n), max(1, e.k), max(1, w["dim3"])))

        def place(base: int, strides: tuple[int, ...], step: tuple[int, ...]) -> int:
            return base + sum(s * i for s, i in zip(strides, step, strict=True))

        taken = [self._at(place(d.in0_addr, w["stride_in"], step), size).copy() for step in steps]
        for step, data in zip(steps, taken, strict=True):
            self._at(place(d.out_addr, w["stride_out"], step), size)[:] = data

    def _taken(self, d: Descriptor, count: int, rows: int, columns: int, stride: int) -> bool | None:
        indices = self.get(d.in1_addr, 1, count, T.INT32)[0].astype(np.int64)
        if ((indices < -rows) | (indices >= rows)).any():
            return False
        size = row_bytes(columns, d.type_in0)
        data = [self._at(d.in0_addr + int(i % rows) * (stride or size), size).copy() for i in indices]
        for index, row in enumerate(data):
            self._at(d.out_addr + index * size, size)[:] = row
        return None

    def _gather(self, d: Descriptor) -> bool | None:
        return self._taken(d, d.tile_m, d.tile_n, d.tile_k, d.param0)

    def _gather_macro(self, d: Descriptor, e: Extended) -> bool | None:
        return self._taken(d, e.m, e.k, e.n, e.ld0)

    def _turned(self, x: Array, cos: Array, sin: Array, neighbours: bool) -> Array:
        half = cos.shape[1]
        made = x.astype(np.float32).copy()
        for pair in range(half):
            i, j = (2 * pair, 2 * pair + 1) if neighbours else (pair, pair + half)
            a, b = x[:, i].astype(np.float32), x[:, j].astype(np.float32)
            c, s = cos[:, pair].astype(np.float32), sin[:, pair].astype(np.float32)
            made[:, i], made[:, j] = a * c - b * s, b * c + a * s
        return made

    def _rope(self, d: Descriptor) -> None:
        x = self.get(d.in0_addr, d.tile_m, d.tile_n, d.type_in0)
        table = self.get(d.in1_addr, d.tile_m, d.tile_n, d.type_in1)
        half = d.tile_n // 2
        self.put(d.out_addr, fitted(self._turned(x, table[:, :half], table[:, half:], bool(d.param0)), d.type_out),
                 d.type_out)  # fmt: skip

    # -- keys and values ---------------------------------------------------------------------------------------

    def _position(self, address: int) -> int:
        return int(self.get(address, 1, 1, T.INT32)[0, 0]) & 0xFFFF_FFFF if address else 0

    def _rope_macro(self, d: Descriptor, e: Extended) -> bool | None:
        w = e.words(Opcode.ROPE)
        t = self._position(w["rope_pos_addr"])
        if t + e.m > w["rope_t_max"]:
            return False
        heads, dim, half = w["rope_heads"], w["rope_head_dim"], w["rotary_dim"] // 2
        x = self.get(d.in0_addr, e.m, heads * dim, d.type_in0)
        cos, sin = (self.get(at, w["rope_t_max"], half, d.type_in1)[t : t + e.m] for at in (d.in1_addr, e.in2))
        parts = [self._turned(x[:, h * dim : (h + 1) * dim], cos, sin, bool(w["rope_flags"])) for h in range(heads)]
        self.put(d.out_addr, fitted(np.concatenate(parts, axis=1), d.type_out), d.type_out)
        return None

    def _converted(self, values: Array, source: int, target: int, scale: np.float32, zero: int) -> Array:
        if source == target:
            return values
        if target in RANGE:
            scaled = np.rint((values.astype(np.float32) / scale).astype(np.float32)).astype(np.float64)
            return clipped(scaled + zero, target)
        if source in RANGE:
            return fitted((values.astype(np.int64) - zero) * np.float64(scale), target)
        return fitted(values, target)

    def _kv_read(self, d: Descriptor) -> None:
        rows = self.get(d.in0_addr, d.tile_m, d.tile_k, d.type_kv)
        made = self._converted(rows, d.type_kv, d.type_out, number(d.param0), signed(d.param1))
        self.put(d.out_addr, made, d.type_out)

    def _kv_append(self, d: Descriptor) -> None:
        rows = self.get(d.in0_addr, d.tile_m, d.tile_k, d.type_in0)
        made = self._converted(rows, d.type_in0, d.type_kv, number(d.param0), signed(d.param1))
        self.put(d.out_addr, made, d.type_kv)

    def _kv_append_macro(self, d: Descriptor, e: Extended) -> bool | None:
        w = e.words(Opcode.KV_APPEND)
        heads, dim, t_max, tokens = w["kv_heads"], w["head_dim"], w["t_max"], w["q_len"]
        t = self._position(w["pos_addr"])
        if t + tokens > t_max:
            return False
        rows = self.get(d.in0_addr, tokens, heads * dim, d.type_in0)
        if d.type_kv == T.ENCODED:
            how = self._half(e.scale)
            return how is not None and self._tokens(d.out_addr, w).append(t, rows, how)
        size = row_bytes(dim, d.type_kv)
        for head in range(heads):
            self.put(d.out_addr + (head * t_max + t) * size, rows[:, head * dim : (head + 1) * dim], d.type_kv)
        return None

    def _kv_read_macro(self, d: Descriptor, e: Extended) -> None:
        w = e.words(Opcode.KV_READ)
        rows = self._cached(d.in0_addr, w, w["kv_len"], d.type_kv)
        self.put(d.out_addr, np.concatenate(rows, axis=1), d.type_out)

    def _cached(self, address: int, w: dict[str, int], tokens: int, kind: int) -> list[Array]:
        """The first tokens of each head."""
        size = row_bytes(w["head_dim"], kind) * w["t_max"]
        return [self.get(address + h * size, tokens, w["head_dim"], kind) for h in range(w["kv_heads"])]

    def _half(self, address: int) -> Half | None:
        return half(self._at(address, 32).tobytes())

    def _tokens(self, address: int, w: dict[str, int]) -> EncodedTokens:
        return EncodedTokens(self._at, address, w["kv_heads"], w["t_max"], w["head_dim"])

    def _decoded(self, d: Descriptor, e: Extended, t: int) -> list[list[Array]] | None:
        """Keys and values by head, those of the queries' own tokens appended before where the command says so."""
        w = e.words(Opcode.ATTN_T)
        width, before, sides = w["kv_heads"] * w["head_dim"], self.memories, []
        self.memories = {base: data.copy() for base, data in before.items()}
        for side, (address, at) in enumerate(((d.in1_addr, 0), (e.in2, w["new_step"]))):
            tokens, how = self._tokens(address, w), self._half(e.scale + 32 * side)
            fresh = self.get(e.bias + at, w["q_len"], width, d.type_in1, e.ld1) if w["attn_flags"] & 2 else None
            if how is None or (fresh is not None and not tokens.append(t, fresh, how)):
                break
            if not tokens.valid(t + w["q_len"]):
                break
            sides.append((tokens, how))
        after, self.memories = self.memories, before
        if len(sides) < 2:
            return None
        self.memories = after
        return [tokens.read(t + w["q_len"], how) for tokens, how in sides]

    def _attn_t_macro(self, d: Descriptor, e: Extended) -> bool | None:
        w = e.words(Opcode.ATTN_T)
        heads, dim, queries = w["heads"], w["head_dim"], w["q_len"]
        t = self._position(w["pos_addr"])
        if t + queries > w["t_max"]:
            return False
        keys = t + queries
        q = self.get(d.in0_addr, queries, heads * dim, d.type_in0)
        if d.type_kv == T.ENCODED:
            decoded = self._decoded(d, e, t)
            if decoded is None:
                return False
            k, v = decoded
        else:
            k, v = self._cached(d.in1_addr, w, keys, d.type_kv), self._cached(e.in2, w, keys, d.type_kv)
        scale = np.frombuffer(e.per_op[24:28], "<f4")[0]
        made = []
        for head in range(heads):
            own = head // (heads // w["kv_heads"])
            scores = (self._product(q[:, head * dim : (head + 1) * dim], k[own].T) * scale).astype(np.float64)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
            total: Any = None
            for at in range(0, keys, d.tile_n):
                part = self._product(weights[:, at : at + d.tile_n], v[own][at : at + d.tile_n])
                total = part if total is None else total + part
            made.append(total)
        self.put(d.out_addr, fitted(np.concatenate(made, axis=1), d.type_out), d.type_out)
        return None


def memory_of(dram: Array, scratchpads: list[Array], dram_base: int, spm_base: int) -> dict[int, Array]:
    """Memories by base address."""
    return {dram_base: dram} | {spm_base + c * SPM_CLUSTER_STRIDE: data for c, data in enumerate(scratchpads)}
