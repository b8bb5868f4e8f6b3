"""Products as macro commands: GEMM_T and CONV2D_T with their epilogues."""

from typing import Any

from npu_device.abi.extended import Epilogue
from npu_device.abi.opcodes import BITS, Activation, Eltwise, Opcode
from npu_device.windows import Windows
from toolchain.codegen.commands import BROADCAST
from toolchain.codegen.macro_emitter import Emitter


def _operands(e: Emitter) -> dict[str, int]:
    """Step of the epilogue -> address of its tensor."""
    steps = filter(None, e.layer.text("epilogue").split("+"))
    return dict(zip(steps, e.inputs[2:], strict=True))


def _finish(e: Emitter) -> dict[str, Any]:
    """The words of the epilogue; a bias per row has no place in it."""
    layer, more = e.layer, _operands(e)
    word = 0 if "bias_column" in more else int(Activation[layer.text("activation", "NONE")])
    for step, bit in (("bias", Epilogue.BIAS), ("residual", Epilogue.RESIDUAL), ("scale", Epilogue.REQUANTIZE)):
        word |= int(bit) if step in more else 0
    if "scale" in more and e.sizes[-1] > 1:
        word |= int(Epilogue.PER_CHANNEL)
    zeros = tuple(layer.integer(f"zero{place}") for place in ("0", "1", "_in2", "_out"))
    addresses = {"bias": more.get("bias", 0), "scale": more.get("scale", 0), "in2": more.get("residual", 0)}
    return {"epilogue": word, "zero_point": zeros, **addresses}


def _tile(e: Emitter) -> dict[str, int]:
    return dict(zip(("tile_m", "tile_n", "tile_k"), e.tile, strict=True))


def gemm(e: Emitter) -> None:
    """One command per product of the list. A bias per row follows it, in place."""
    layer = e.layer
    m, n, k = (layer.integer(name) for name in "mnk")
    words = _finish(e)
    size = m * n * BITS[e.kind] // 8
    for index in range(layer.integer("batch")):
        fields = {
            "in0_addr": e.inputs[0] + index * layer.integer("step0") * BITS[e.kinds[0]] // 8,
            "in1_addr": e.inputs[1] + index * layer.integer("step1") * BITS[e.kinds[1]] // 8,
            "out_addr": e.out + index * size, "type_in1": e.kinds[1], "in1_nk": layer.integer("in1_nk"),
        }  # fmt: skip
        residual = {"in2": words["in2"] + index * size} if words["in2"] else {}
        e.put(fields | _tile(e), m=m, n=n, k=k, **{**words, **residual})
    more = _operands(e)
    if "bias_column" in more:
        _column_bias(e, m, n, more["bias_column"], layer.text("activation", "NONE"))


def convolution(e: Emitter) -> None:
    own = {name: e.layer.integer(name) for name in (*Windows._fields, "cin", "cout", "groups")}
    fields = {"in0_addr": e.inputs[0], "in1_addr": e.inputs[1], "type_in1": int(e.kinds[1]), "out_addr": e.out}
    e.put(fields | _tile(e), own, **_finish(e))


def _column_bias(e: Emitter, m: int, n: int, bias: int, activation: str) -> None:
    """ADD one value per row, then the activation, on the result of the product."""
    fields = {"in0_addr": e.out, "type_in0": int(e.kind), "out_addr": e.out, "tile_m": e.tile[0], "tile_n": e.tile[1]}
    second = {"function": int(Eltwise.ADD), "in1_addr": bias, "type_in1": int(e.kind)}
    own = {"broadcast1": BROADCAST["COLUMN"]}
    e.put(fields | second, own, Opcode.ELTWISE, m=m, n=n)
    if activation in ("GELU", "GELU_TANH"):
        e.put(fields | {"param0": int(activation == "GELU_TANH")}, None, Opcode.GELU, m=m, n=n)
    elif activation != "NONE":
        e.put(fields | {"function": int(Eltwise[activation])}, None, Opcode.ELTWISE, m=m, n=n)
