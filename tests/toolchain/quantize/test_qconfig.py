"""QConfig: precedence of overrides, legal keys, and the effect of the pass (docs/bit-widths.md, R3 to R14)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.opcodes import DataType
from npu_device.operations.kernels.elements import decode
from toolchain.codegen import Target, place
from toolchain.errors import ModelError
from toolchain.ir.data_types import encode_values
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR
from toolchain.ir.text import parse, render
from toolchain.passes import run_passes
from toolchain.quantize.qconfig import QConfig, QConfigError, read_qconfig


def test_head_goes_before_layer_before_default() -> None:
    config = read_qconfig(
        {
            "qbits_kv_default": 8,
            "override.layer_3.kv": 4,
            "override.layer_3.head_1.kv": 2,
            "override.layer_4.head_0.kv": 16,
        }
    )
    found = [config.kv_bits(layer, head) for layer, head in ((0, 0), (3, 0), (3, 1), (4, 0), (4, 1))]
    assert found == [8, 4, 2, 16, 8]
    assert QConfig().kv_bits(7, 7) == 4 and QConfig().weight_bits(0) is None


def test_weights_have_a_default_and_layers() -> None:
    config = read_qconfig({"qbits_weight_default": 4, "override.layer_1.weight": 8, "override.layer_2.weight": 16})
    assert [config.weight_bits(layer) for layer in range(4)] == [4, 8, None, 4]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"qbits_weights": 4},
            "qbits_weights: no such key; keys are qbits_weight_default, qbits_activation_default, qbits_kv_default, ",
        ),
        ({"layer_3.timestep_1.kv": 4}, "layer_3.timestep_1.kv: no such override; "),
        ({"layer_3.kv": 4, "override.layer_3.kv": 4}, "override.layer_3.kv: layer_3.kv is given twice, "),
        (
            {"override.layer_0.timestep_3.kv": 4},
            "override.layer_0.timestep_3.kv: no such override; there are layer_<i>.weight, layer_<i>.activation, "
            "layer_<i>.kv and layer_<i>.head_<j>.kv, none in time",
        ),
        ({"override.layer_0.head_1.weight": 4}, "override.layer_0.head_1.weight: no such override; "),
        ({"override.layer_x.kv": 4}, "override.layer_x.kv: no such override; "),
        ({"qbits_kv_default": 5}, "qbits_kv_default: 5 bits: must be one of 2, 4, 8, 16"),
        ({"qbits_kv_default": True}, "qbits_kv_default: True bits: must be one of 2, 4, 8, 16"),
        (
            {"override.layer_1.weight": 2, "bitwidths.weight": [4, 8]},
            "override.layer_1.weight: 2 bits: must be one of 4, 8",
        ),
        ({"bitwidths.weight": [3]}, "bitwidths.weight: [3]: must be a list of 2, 4, 8, 16, 32"),
        ({"bitwidths.kv": []}, "bitwidths.kv: []: must be a list of 2, 4, 8, 16"),
        ({"packing.mode": "none"}, "packing.mode: none: must be one of logical, packed_rows, unpacked_byte"),
        ({"packing.use_packed_int4": 1}, "packing.use_packed_int4: 1: must be true or false"),
        (
            {"alignment.weight_alignment_bytes": 48},
            "alignment.weight_alignment_bytes: 48: must be a power of two of at least 4 bytes",
        ),
        ({"spm.num_banks": 0}, "spm.num_banks: 0: must be a whole number above 0"),
    ],
)
def test_what_cannot_be_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(QConfigError) as caught:
        read_qconfig(values)
    assert str(caught.value).startswith(message)
    assert caught.value.key in values


def product(n: int, k: int, nk: bool = False) -> Graph:
    """x (3 x k) times random weights."""
    values = np.random.default_rng(n * k).standard_normal((n, k) if nk else (k, n)).astype(np.float32)
    tensors = [
        TensorIR("x", Role.ACTIVATION, (3, k), DataType.FP32), TensorIR("w", Role.WEIGHT, values.shape, DataType.FP32),
        TensorIR("y", Role.ACTIVATION, (3, n), DataType.FP32),
    ]  # fmt: skip
    attributes = {"batch": 1, "m": 3, "n": n, "k": k, "step0": 0, "step1": 0, "in1_nk": int(nk)}
    layer = LayerIR("p", "GEMM_T", ("x", "w"), ("y",), attributes)
    return Graph("g", {tensor.id: tensor for tensor in tensors}, [layer], {"w": values}, ("x",), ("y",))


def narrowed(graph: Graph, config: QConfig) -> Graph:
    return run_passes(graph, ["quantization"], Target(qconfig=config))


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([2, 4, 8]), st.booleans())
@settings(max_examples=draws(60), deadline=None, derandomize=True)
def test_codes_are_within_half_a_step_and_packed_by_row(n: int, k: int, bits: int, nk: bool) -> None:
    graph = narrowed(product(n, k, nk), QConfig(weight=bits))
    name, scale = graph.layers[0].inputs[1:]
    tensor, codes, scales = graph.tensors[name], graph.constants[name], graph.constants[scale]
    wide = codes * (scales[:, None] if nk else scales)
    original = product(n, k, nk).constants["w"]
    top, steps = (1 << bits - 1) - 1, (scales[:, None] if nk else scales)
    near = np.abs(wide - original) <= 0.5001 * steps
    assert np.all(near | ((np.abs(codes) == top) & (np.abs(original) > np.abs(wide)))), "within half a step, or beyond"
    largest = np.abs(original).max(axis=1 if nk else 0, keepdims=True) / top
    rounded = np.rint(original / np.where(largest > 0, largest, 1)) * largest
    assert np.square(wide - original).sum() <= 1.0001 * np.square(rounded - original).sum() + 1e-9
    data = encode_values(codes, tensor.dtype)
    rows, columns = codes.shape
    assert len(data) == tensor.size == rows * -(-columns * bits // 8)
    read = decode(np.frombuffer(data, np.uint8).reshape(rows, -1), tensor.dtype, rows, columns)
    assert np.array_equal(read, codes), "what the device reads"


def test_an_unpacked_byte_holds_one_element() -> None:
    packed, bytes_ = (
        narrowed(product(16, 8), QConfig(weight=4, packing=mode)) for mode in ("logical", "unpacked_byte")
    )
    assert packed.tensors["w.int4"].size == 64 and bytes_.tensors["w.int4"].size == 128
    assert np.array_equal(packed.constants["w.int4"], bytes_.constants["w.int4"])


def test_alignment_is_of_the_role_and_shows_in_the_text() -> None:
    config = read_qconfig({"alignment.weight_alignment_bytes": 256, "alignment.default_alignment_bytes": 128})
    graph = narrowed(product(4, 4), config)
    assert {tensor.id: tensor.alignment_bytes for tensor in graph.tensors.values()} == {"x": 128, "w": 256, "y": 128}
    assert "tensor x: activation FP32 [3, 4] {alignment: 128}\n" in render(graph)
    assert render(parse(render(graph))) == render(graph)
    addresses = place(graph, Target(dram_bytes=1 << 30)).addresses
    assert all(address % graph.tensors[name].alignment_bytes == 0 for name, address in addresses.items())


@pytest.mark.parametrize("unit", [64, 512])
def test_tensors_begin_where_accesses_of_the_device_do(unit: int) -> None:
    addresses = place(product(3, 5), Target(dram_bytes=1 << 30, alignment=unit)).addresses
    assert len(addresses) == 3 and not any(address % unit for address in addresses.values())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"override.layer_1.weight": 4},
            "QConfig override.layer_1.weight: the model has 1 products with constant weights, layer_0 to layer_0",
        ),
        (
            {"spm.num_banks": 4},
            "E_BANK: QConfig spm.num_banks 4: the device has 8; leave it out, or set npu.spm.size and npu.spm.banks",
        ),
        ({"spm.bank_size_bytes": 4096}, "E_BANK: QConfig spm.bank_size_bytes 4096: the device has 262144; "),
    ],
)
def test_what_is_not_there_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        narrowed(product(2, 2), read_qconfig(config))
    assert str(caught.value).startswith(message)


def test_without_the_pass_nothing_is_quantized() -> None:
    graph = run_passes(product(4, 4), ["tiling"], Target(qconfig=QConfig(weight=4)))
    assert graph.layers[0].inputs == ("x", "w")
