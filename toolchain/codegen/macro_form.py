"""Layers as macro commands: one descriptor each, which the device expands (docs/interface.md, "Macro form").

All commands have addresses, a tile and a scratchpad share in common; products (GEMM_T, CONV2D_T) add an epilogue.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from npu_device.abi.extended import Epilogue
from npu_device.abi.opcodes import BITS, Activation, Appended, DataType, Eltwise, Norm, Opcode, Pool, Reduce
from npu_device.operations.windows import Windows
from toolchain.codegen.commands import BROADCAST, float_bits, word
from toolchain.codegen.macro_emitter import MacroEmitter
from toolchain.codegen.tiles import SLOT, block_of
from toolchain.errors import ModelError
from toolchain.ir.graph import LayerIR, Role
from toolchain.ir.operations import append_operands, epilogue_of, has_factors, windows_of


def _operands(e: MacroEmitter) -> dict[str, int]:
    """Map each step of the epilogue to the address of its tensor."""
    return dict(zip(epilogue_of(e.layer), e.inputs[2:], strict=False))


def _finish(e: MacroEmitter) -> dict[str, Any]:
    """Return the words of the epilogue. A bias per row is not supported there."""
    layer, operands = e.layer, _operands(e)
    word = 0 if "bias_column" in operands else int(Activation[layer.text("activation", "NONE")])
    for step, bit in (("bias", Epilogue.BIAS), ("residual", Epilogue.RESIDUAL), ("scale", Epilogue.REQUANTIZE)):
        word |= int(bit) if step in operands else 0
    if "scale" in operands and e.sources[2 + list(operands).index("scale")].elements > 1:
        word |= int(Epilogue.PER_CHANNEL)
    zeros = tuple(layer.integer(f"zero{place}") for place in ("0", "1", "_in2", "_out"))
    addresses = {"bias": operands.get("bias", 0), "scale": operands.get("scale", 0), "in2": operands.get("residual", 0)}
    return {"epilogue": word, "zero_point": zeros, **addresses}


def _codebooks(e: MacroEmitter) -> tuple[dict[str, int], dict[str, int]]:
    """Return (descriptor fields, per-op words) for the codebooks of the weights; both empty without codebooks."""
    count = e.layer.integer("codebooks")
    return ({"param0": count}, {"codebook": e.inputs[-1]}) if count else ({}, {})


def _tile(e: MacroEmitter) -> dict[str, int]:
    return dict(zip(("tile_m", "tile_n", "tile_k"), e.tile, strict=True))


def gemm(e: MacroEmitter) -> None:
    """Emit one command per product of the batch. A bias per row follows as separate in-place commands."""
    layer = e.layer
    m, n, k = (layer.integer(name) for name in "mnk")
    words = _finish(e)
    books, per_op = _codebooks(e)
    if e.sources[1].pitch:
        words["ld1"] = e.sources[1].pitch * BITS[e.kinds[1]] // 8
    size = m * n * BITS[e.kind] // 8
    for index in range(layer.integer("batch")):
        fields = {
            "in0_addr": e.inputs[0] + index * layer.integer("step0") * BITS[e.kinds[0]] // 8,
            "in1_addr": e.inputs[1] + index * layer.integer("step1") * BITS[e.kinds[1]] // 8,
            "out_addr": e.out + index * size, "type_in1": e.kinds[1], "in1_nk": layer.integer("in1_nk"),
        }  # fmt: skip
        residual = {"in2": words["in2"] + index * size} if words["in2"] else {}
        order = layer.integer("loop_order")
        blocks = dict(zip(("block_m", "block_n", "block_k"), block_of(layer), strict=True))
        e.put(fields | _tile(e) | books, per_op | blocks, m=m, n=n, k=k, loop_order=order, **{**words, **residual})
    operands = _operands(e)
    if "bias_column" in operands:
        _column_bias(e, m, n, operands["bias_column"], layer.text("activation", "NONE"))


def convolution(e: MacroEmitter) -> None:
    books, codebook_words = _codebooks(e)
    per_op = {name: e.layer.integer(name) for name in (*Windows._fields, "cin", "cout", "groups")} | codebook_words
    fields = {"in0_addr": e.inputs[0], "in1_addr": e.inputs[1], "type_in1": int(e.kinds[1]), "out_addr": e.out}
    m, n, k = block_of(e.layer)
    e.put(fields | _tile(e) | books, per_op, m=m, n=n, k=k, loop_order=e.layer.integer("loop_order"), **_finish(e))


def _column_bias(e: MacroEmitter, m: int, n: int, bias: int, activation: str) -> None:
    """Emit an ADD of one value per row and then the activation, both in place on the result of the product."""
    fields = {"in0_addr": e.out, "type_in0": int(e.kind), "out_addr": e.out, "tile_m": e.tile[0], "tile_n": e.tile[1]}
    second = {"function": int(Eltwise.ADD), "in1_addr": bias, "type_in1": int(e.kind)}
    per_op = {"broadcast1": BROADCAST["COLUMN"]}
    e.put(fields | second, per_op, Opcode.ELTWISE, m=m, n=n)
    if activation in ("GELU", "GELU_TANH"):
        e.put(fields | {"param0": int(activation == "GELU_TANH")}, None, Opcode.GELU, m=m, n=n)
    elif activation != "NONE":
        e.put(fields | {"function": int(Eltwise[activation])}, None, Opcode.ELTWISE, m=m, n=n)


MAX_BYTE = 255
"""Maximum of a window attribute in tile form, which is one byte."""
APPEND = 2
"""Bit of attn_flags: the command appends the new keys and values."""
COPY_DIMS = 4
"""Dimensions of one COPY command."""


def _plain(
    e: MacroEmitter, per_op: dict[str, Any] | None = None, words: dict[str, Any] | None = None, **fields: int
) -> None:
    """Emit a command on m x n elements."""
    e.put(
        {"in0_addr": e.inputs[0], "out_addr": e.out, "tile_m": e.tile[0], "tile_n": e.tile[1], **fields}, per_op,
        m=e.layer.integer("m"), n=e.layer.integer("n"), **(words or {}),
    )  # fmt: skip


def eltwise(e: MacroEmitter) -> None:
    layer = e.layer
    function = layer.text("function")
    fields = {"function": int(Eltwise[function])}
    per_op: dict[str, Any] = {}
    if function == "CLIP":
        per_op = {"lowest": word(layer.real("low"), e.kind), "highest": word(layer.real("high"), e.kind)}
    elif function in ("QUANT", "DEQUANT"):
        _plain(e, None, {"scale": e.inputs[1]} | _zero(e, 3 if function == "QUANT" else 0), **fields)
        return
    elif len(e.inputs) > 1:
        fields |= {"in1_addr": e.inputs[1], "type_in1": e.kinds[1]}
        per_op = {"broadcast1": BROADCAST[layer.text("broadcast", "FULL")]}
    _plain(e, per_op, {"in2": e.inputs[2]} if function == "WHERE" else {}, **fields)


def _zero(e: MacroEmitter, index: int) -> dict[str, Any]:
    points = [0, 0, 0, 0]
    points[index] = e.layer.integer("zero")
    return {"zero_point": tuple(points)}


def norm(e: MacroEmitter) -> None:
    words = {"epilogue": int(Epilogue.BIAS), "bias": e.inputs[2]} if len(e.inputs) > 2 else {}
    _plain(
        e, None, words, function=int(Norm[e.layer.text("function")]), in1_addr=e.inputs[1], type_in1=e.kinds[1],
        param0=float_bits(e.layer.real("epsilon")),
    )  # fmt: skip


def softmax(e: MacroEmitter) -> None:
    _plain(e)


def gelu(e: MacroEmitter) -> None:
    _plain(e, param0=e.layer.integer("tanh"))


def reduce(e: MacroEmitter) -> None:
    k = e.layer.integer("k")
    tile = {"tile_n": e.tile[1]} if k > 1 else {}
    _plain(e, None, {"k": k}, function=int(Reduce[e.layer.text("function")]), **tile)


def pool(e: MacroEmitter) -> None:
    layer = e.layer
    per_op = {f"pool_{name}": layer.integer(name) for name in Windows._fields}
    per_op |= {"channels": layer.integer("channels"), "count_pads": layer.integer("count_pads")}
    fields = {"in0_addr": e.inputs[0], "out_addr": e.out, "function": int(Pool[layer.text("function")])}
    e.put(fields | {"tile_m": e.tile[0], "tile_n": e.tile[1]}, per_op)


def copy(e: MacroEmitter) -> None:
    """Emit one command for the four largest dimensions, in a loop over the others."""
    layer, size = e.layer, BITS[e.kind] // 8
    axes = list(zip(layer.integers("dims"), layer.integers("from"), layer.integers("to"), strict=True))
    walked = sorted(sorted(range(len(axes)), key=lambda axis: axes[axis][0])[: max(0, len(axes) - COPY_DIMS)])
    outer = [axes[axis] for axis in walked]
    inner = [axes[axis] for axis in range(len(axes)) if axis not in walked]
    inner = [(1, 0, 0)] * (COPY_DIMS - len(inner)) + inner
    dims = [axis[0] for axis in inner]
    rows = dims[0] * dims[1] * dims[2]
    tile = _copy_tile(rows, dims[3], layer, size, e)
    per_op: dict[str, Any] = {
        "dim3": dims[3],
        "stride_in": tuple(axis[1] * size for axis in inner),
        "stride_out": tuple(axis[2] * size for axis in inner),
    }
    for index in itertools.product(*(range(axis[0]) for axis in outer)):
        at_in = layer.integer("at_in") + sum(i * axis[1] for i, axis in zip(index, outer, strict=True))
        at_out = layer.integer("at_out") + sum(i * axis[2] for i, axis in zip(index, outer, strict=True))
        e.put(
            {
                "in0_addr": e.inputs[0] + at_in * size, "out_addr": e.out + at_out * size,
                "tile_m": tile[0], "tile_n": tile[1],
            },
            per_op, m=dims[0], n=dims[1], k=dims[2],
        )  # fmt: skip


PIECES = 16
"""Number of tiles of a COPY."""
PIECE_BYTES = 1 << 14
"""Minimum bytes of a COPY tile; smaller tiles are bound by latency."""


def _copy_tile(rows: int, columns: int, layer: LayerIR, size: int, e: MacroEmitter) -> tuple[int, int]:
    """Return rows and columns of a tile whose buffers fit the share: input and output, `prefetch` + 1 of each. A copy
    has `PIECES` tiles to overlap stores with loads, or tiles of `PIECE_BYTES`."""
    capacity = e.share // (2 * (layer.integer("prefetch") + 1)) // SLOT * SLOT // size
    wide = min(columns, capacity)
    high = -(-max(PIECE_BYTES, rows * columns * size // PIECES) // (wide * size))
    return max(1, min(rows, capacity // wide, high)), wide


def gather(e: MacroEmitter) -> None:
    e.put(
        {
            "in0_addr": e.inputs[0], "in1_addr": e.inputs[1], "type_in1": e.kinds[1], "out_addr": e.out,
            "tile_m": e.tile[0],
        },
        m=e.layer.integer("m"), n=e.layer.integer("n"), k=e.layer.integer("k"),
    )  # fmt: skip


def rope(e: MacroEmitter) -> None:
    """Emit one command per batch. The tables have one row per row of x, or start at position 0."""
    layer = e.layer
    m, n, heads = (layer.integer(name) for name in ("m", "n", "heads"))
    per_op = {
        "rope_heads": heads, "rope_head_dim": n // heads, "rotary_dim": layer.integer("rotary"),
        "rope_flags": layer.integer("neighbours"), "rope_t_max": layer.integer("t_max", m),
        "rope_pos_addr": e.inputs[3] if len(e.inputs) > 3 else 0,
    }  # fmt: skip
    fields = {"in1_addr": e.inputs[1], "type_in1": int(e.kinds[1]), "tile_m": e.tile[0]}
    for index in range(layer.integer("batch", 1)):
        x, out = e.inputs[0] + index * e.rows_in(m, n), e.out + index * e.rows_out(m, n)
        e.put(fields | {"in0_addr": x, "out_addr": out}, per_op, m=m, in2=e.inputs[2])


def kv_append(e: MacroEmitter) -> None:
    """Emit commands that append token rows to a log, starting at the position."""
    _append(e, e.inputs[0], e.out, e.inputs[1], e.kinds[0], e.sources[0].pitch, {}, Appended.ACTIVATION)


def kv_update(e: MacroEmitter) -> None:
    """Emit commands that append new keys, and new values if any, to their caches: one command per batch."""
    sides = len(e.outs)
    for side, out in enumerate(e.outs):
        index = sides + 1 + side
        scale = _kv_scale(e, index) if index < len(e.inputs) else {}
        _append(e, e.inputs[side], out, e.inputs[sides], e.kinds[side], e.sources[side].pitch, scale)


def _append(
    e: MacroEmitter, x: int, cache: int, position: int, kind: DataType, pitch: int,
    scale: Mapping[str, Any], function: Appended = Appended.KV,
) -> None:  # fmt: skip
    m, n, heads, t_max = (e.layer.integer(name) for name in ("m", "n", "heads", "t_max"))
    per_op = {"kv_heads": heads, "head_dim": n // heads, "q_len": m, "t_max": t_max, "pos_addr": position}
    fields = {
        "type_in0": int(kind), "type_out": 0, "type_kv": int(e.kind), "tile_m": e.tile[0], "function": int(function),
    }  # fmt: skip
    step = e.bytes_out // e.layer.integer("batch", 1)
    words = {**scale, "ld0": pitch * BITS[kind] // 8}
    for index in range(e.layer.integer("batch", 1)):
        at, to = x + index * m * (pitch or n) * BITS[kind] // 8, cache + index * step
        e.put(fields | {"in0_addr": at, "out_addr": to}, per_op, **words)


def attention(e: MacroEmitter) -> None:
    """Emit one command per batch. With a position, each query sees the keys up to its own."""
    layer = e.layer
    m, n, heads, kv_heads, t_max = (layer.integer(name) for name in ("m", "n", "heads", "kv_heads", "t_max"))
    size = n // heads
    per_op = {
        "heads": heads, "kv_heads": kv_heads, "head_dim": size, "q_len": m,
        "attn_flags": layer.integer("causal", 1) | APPEND * layer.integer("append"),
        "kv_len": layer.integer("keys"), "t_max": t_max, "pos_addr": e.inputs[3] if len(e.inputs) > 3 else 0,
        "window": layer.integer("window"), "attn_scale": float_bits(layer.real("scale")),
    }  # fmt: skip
    tile = {"tile_m": e.tile[0], "tile_n": e.tile[1], "tile_k": size, "param0": float_bits(layer.real("softcap", 0.0))}
    zero = (0, layer.integer("zero1"), layer.integer("zero2"), 0)
    batch = layer.integer("batch", 1)
    tokens = e.sources[1].size // batch
    new, kind, step, pitch = _new_tokens(e)
    scale = _kv_scale(e, 4) if len(e.inputs) - 2 * bool(new) > 4 else {}
    for index in range(batch):
        q, k, v = (at + index * step for at, step in zip(e.inputs, (e.rows_in(m, n), tokens, tokens), strict=False))
        fields = {"in0_addr": q, "in1_addr": k, "out_addr": e.out + index * e.rows_out(m, n), "type_kv": e.kinds[1]}
        words = {"in2": v, "zero_point": zero, **scale}
        if new:
            fields["type_in1"] = int(kind)
            words |= {"bias": new + index * m * pitch, "ld1": pitch}
        e.put(fields | tile, per_op | ({"new_step": step} if new else {}), **words)


def _new_tokens(e: MacroEmitter) -> tuple[int, DataType, int, int]:
    """Return (address of the appended keys, type, byte offset to the values, row pitch in bytes) for an ATTN_T that
    appends. ModelError: the offset to the values exceeds 32 bits."""
    if not append_operands(e.layer):
        return 0, DataType.NONE, 0, 0
    (first, second), kind, layer = e.inputs[-2:], e.kinds[-1], e.layer
    width = layer.integer("kv_heads") * layer.integer("n") // layer.integer("heads")
    pitch = (e.sources[-2].pitch or width) * BITS[kind] // 8
    if not -(1 << 31) <= second - first < 1 << 31:
        raise ModelError(
            f"layer {layer.id}: new keys and values lie {second - first} bytes apart, a command reaches 2 GiB: "
            "--passes=-kv-forwarding"
        )
    return first, kind, second - first, pitch


def _kv_scale(e: MacroEmitter, index: int) -> dict[str, Any]:
    """Return the words for `scale`: scales of integer keys and values, per head or per head and token, or the parameter
    block of encoded keys and values."""
    per = Epilogue.PER_TOKEN if e.sources[index].role is Role.KV else Epilogue.PER_CHANNEL
    bits = Epilogue.REQUANTIZE if e.kinds[index] is DataType.INT32 else Epilogue.REQUANTIZE | per
    return {"scale": e.inputs[index], "epilogue": int(bits)}


FORMS: dict[str, Callable[[MacroEmitter], None]] = {
    "GEMM_T": gemm,
    "CONV2D_T": convolution,
    "POOL": pool,
    "ELTWISE": eltwise,
    "LAYERNORM": norm,
    "SOFTMAX": softmax,
    "GELU": gelu,
    "REDUCE": reduce,
    "COPY": copy,
    "GATHER": gather,
    "KV_APPEND": kv_append,
    "KV_UPDATE": kv_update,
    "ATTN_T": attention,
    "ROPE": rope,
}


def is_macro_only(layer: LayerIR) -> bool:
    """Check whether a layer has a macro form only: tables, zero points, tensor scales, codebooks, some windows."""
    if layer.op_type == "GEMM_T":
        return has_factors(layer) or layer.text("activation") not in ("", "GELU", "GELU_TANH", *Eltwise.__members__)
    if layer.op_type == "REDUCE":
        return layer.integer("k") > 1
    if layer.op_type == "POOL":
        shape = windows_of(layer)
        dilated = (shape.dh, shape.dw) != (1, 1)
        return dilated or bool(layer.integer("count_pads")) or max(shape[3:7]) > MAX_BYTE or max(shape[9:]) > MAX_BYTE
    quantizes = layer.text("function") in ("QUANT", "DEQUANT")
    if layer.op_type == "ATTN_T":
        return not layer.integer("tiles")
    tables = ("CONV2D_T", "GATHER", "KV_APPEND", "KV_UPDATE", "ROPE")
    return layer.op_type in tables or (quantizes and "scale" not in layer.attributes)
