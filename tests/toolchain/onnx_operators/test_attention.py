"""Attention without a cache of the device: one ATTN_T where it can be, against onnx.reference."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_runs import run_compiled
from onnx import TensorProto, helper
from onnxruntime_reference import by_onnxruntime, by_us, one_node, random
from shares import draws

from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig, SpmConfig
from pyv_npu.config import Config, with_values
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare
from pyv_npu.workloads.data import random_inputs
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.onnx_model.model import prepare

KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def model(
    batch: int = 1, heads: int = 4, kv_heads: int = 2, queries: int = 5, keys: int = 5, size: int = 8, past: int = 0,
    four: bool = False, kind: str = "float32", value_size: int = 0, present: bool = False, spm_bytes: int = 2 << 20,
    **attributes: Any,
) -> Compiled:  # fmt: skip
    """One Attention; `four`: Q, K and V of four dimensions."""
    value, code = helper.make_tensor_value_info, KINDS[kind]
    widths = [size, size, value_size or size]

    def shape(count: int, length: int, width: int) -> list[int]:
        return [batch, count, length, width] if four else [batch, length, count * width]

    counts, lengths = (heads, kv_heads, kv_heads), (queries, keys, keys)
    inputs = [
        value(name, code, shape(count, length, width))
        for name, count, length, width in zip("qkv", counts, lengths, widths, strict=True)
    ]
    if past:
        inputs += [value(f"past_{n}", code, [batch, kv_heads, past, w]) for n, w in zip("kv", widths[1:], strict=True)]
    outputs = [value("y", code, shape(heads, queries, widths[2]))]
    if past or present:
        total = [[batch, kv_heads, past + keys, width] for width in widths[1:]]
        outputs += [value(f"present_{n}", code, dims) for n, dims in zip("kv", total, strict=True)]
    names = [one.name for one in inputs[:3]] + (["", "past_k", "past_v"] if past else [])
    named = {} if four else {"q_num_heads": heads, "kv_num_heads": kv_heads}
    node = helper.make_node("Attention", names, [one.name for one in outputs], name="a", **named, **attributes)
    opset = 25 if any("window" in name for name in attributes) else 23
    proto = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", opset)], ir_version=11
    )
    return compile_model(prepare(proto, "m"), Target(spm_bytes=spm_bytes))


def operations(made: Compiled) -> list[str]:
    return [layer.op_type for layer in made.graph.layers]


def assert_near(made: Compiled, seed: int = 1) -> None:
    inputs = random_inputs(made, seed)
    outputs, codes = ia.observed(made, NpuConfig(), inputs)
    for name, check in compare(made, outputs, inputs, codes).outputs.items():
        assert check["ok"], (name, check)


@given(
    st.integers(1, 3), st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]), st.integers(1, 9), st.integers(1, 9),
    st.sampled_from([0, 3]), st.booleans(), st.booleans(), st.sampled_from(list(KINDS)), st.booleans(),
)  # fmt: skip
@settings(max_examples=draws(40), deadline=None, derandomize=True)
def test_it_is_one_command_per_batch(
    batch: int, heads: tuple[int, int], queries: int, keys: int, past: int, four: bool, causal: bool, kind: str,
    present: bool,
) -> None:  # fmt: skip
    queries = min(queries, keys) if causal else queries
    made = model(batch, *heads, queries, keys, past=past, four=four, kind=kind, present=present, is_causal=int(causal))
    assert operations(made).count("ATTN_T") == 1 and set(operations(made)) <= {"ATTN_T", "COPY"}
    assert sum(command.descriptor.opcode == Opcode.ATTN_T for command in made.commands) == batch
    assert_near(made)


def test_without_past_and_with_rows_of_tokens_nothing_is_moved() -> None:
    made = model(batch=2, is_causal=1)
    assert operations(made) == ["ATTN_T"] and len(made.commands) == 2


@pytest.mark.parametrize("window", [0, 2])
def test_a_window_on_the_left_is_the_commands(window: int) -> None:
    made = model(queries=6, keys=6, past=2, left_window_size=window, is_causal=1)
    assert "ATTN_T" in operations(made)
    assert_near(made)


@pytest.mark.parametrize("causal", [0, 1])
def test_a_bound_of_scores_is_the_commands_and_takes_vector_time(causal: int) -> None:
    made, free = (model(queries=6, keys=6, is_causal=causal, softcap=cap) for cap in (0.5, 0.0))
    assert operations(made).count("ATTN_T") == 1
    assert_near(made)
    inputs = random_inputs(made, 1)
    (bounded, _), (other, _) = (ia.observed(one, NpuConfig(), inputs) for one in (made, free))
    assert not np.allclose(bounded["y"], other["y"], rtol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"queries": 5, "keys": 3, "is_causal": 1},  # the first query sees the first key, the last ones see all
        {"queries": 3, "keys": 5, "left_window_size": 1},  # the queries are the first of the keys
        {"value_size": 4},
        {"right_window_size": 1},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_what_it_cannot_do_is_products_and_a_softmax(settings: dict[str, Any]) -> None:
    made = model(**settings)
    assert "ATTN_T" not in operations(made) and {"GEMM_T", "SOFTMAX"} <= set(operations(made))
    assert_near(made)


@pytest.mark.parametrize("scratchpad", [2 << 20, 1 << 16, 1 << 15])
def test_keys_are_cut_where_heads_are_wide_or_the_scratchpad_is_small(scratchpad: int) -> None:
    made = model(heads=1, kv_heads=1, queries=20, keys=600, size=256, spm_bytes=scratchpad)
    (tile,) = (layer.integers("tile") for layer in made.graph.layers)
    assert 1 <= tile[1] < 512  # 512 keys of 1,024 bytes fit no half of 2 MiB twice
    inputs = random_inputs(made, 1)
    outputs, codes = ia.observed(made, NpuConfig(spm=SpmConfig(size=scratchpad)), inputs)
    assert compare(made, outputs, inputs, codes).outputs["y"]["ok"]


def test_through_firmware_it_is_the_same() -> None:
    made = model(heads=8, kv_heads=2, queries=20, keys=20, size=32, is_causal=1)
    seen = set()
    for values in ({"run.sim_level": "IA"}, {"npu.mode": "loose"}, {"npu.mode": "tight"}):
        result = run_compiled(with_values(Config(), values), made)
        assert result.correct
        seen.add(result.detail.outputs["y"].tobytes())
    assert len(seen) == 1
    assert np.frombuffer(seen.pop(), np.float32).std() > 0.1


MASKS = {
    "float": np.array([[0, -1, -np.inf, -np.inf], [-np.inf] * 4, [-np.inf, 2, -np.inf, 1]], np.float32),
    "float16": np.array([[0, -1, -np.inf, -np.inf], [-np.inf] * 4, [-np.inf, -2, 0, 1]], np.float16),
    "bool": np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]], np.bool_),
    "requests": np.array([[[[1, 0, 1]] * 3], [[[0, 0, 0]] * 3]], np.bool_),
    "nan": np.array([[np.nan, np.nan, -np.inf, -np.inf], [-np.inf] * 4, [np.nan] * 4], np.float32),
}


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_query_without_keys_has_the_result_zero(mask: str, constant: bool, causal: int) -> None:
    kind = np.float16 if mask == "float16" else np.float32
    inputs: dict[str, Any] = {name: random(2, 2, 3, 4, seed=seed).astype(kind) for seed, name in enumerate("qkv")}
    if MASKS[mask].shape[-1] == 4:
        inputs |= {name: random(2, 2, 4, 4, seed=seed).astype(kind) for seed, name in enumerate("kv", 1)}
    masks = {"m": MASKS[mask]}
    proto = one_node(
        "Attention", inputs | ({} if constant else masks), constants=masks if constant else {},
        order=["q", "k", "v", "m"], kinds=[KINDS[kind.__name__]], is_causal=causal, opset=24,
    )  # fmt: skip
    feeds = inputs if constant else inputs | masks
    (got, _), want = by_us(proto, feeds), by_onnxruntime(proto, feeds)
    np.testing.assert_allclose(got["y"], want["y"], atol=2e-3 if kind is np.float16 else 1e-6)
    closed = MASKS[mask] == (0 if MASKS[mask].dtype == np.bool_ else -np.inf)
    assert not np.any(got["y"][np.broadcast_to(closed.all(axis=-1, keepdims=True), got["y"].shape)])


def test_a_query_that_a_window_has_no_key_for_is_zero() -> None:
    made = model(queries=3, keys=5, left_window_size=0, past=0, right_window_size=0)
    assert_near(made)
    made = model(queries=5, keys=3, left_window_size=0)
    assert_near(made)


def test_scores_that_the_lowest_number_absorbs_are_equal() -> None:
    """A row of a mask that is finite is no row without keys (onnxruntime takes it for such)."""
    inputs = {name: random(1, 2, 1, 4, seed=seed) for seed, name in enumerate("qkv")}
    inputs |= {name: random(1, 2, 3, 4, seed=seed) for seed, name in enumerate("kv", 1)}
    low = float(np.finfo(np.float32).min)
    inputs["m"] = np.array([[low, -np.inf, low]], np.float32)
    (got, _) = by_us(one_node("Attention", inputs, opset=24), inputs)
    np.testing.assert_allclose(got["y"], inputs["v"][:, :, ::2].mean(axis=2, keepdims=True), rtol=1e-6)
