"""Steps of small built-in decoders compute what numpy computes: NPU-IR with weights, evaluated at level IA."""

from math import erf
from typing import Any

import numpy as np
import pytest

from npu_device.config import NpuConfig
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.ia import FunctionalMachine
from toolchain.backend import Program, compile_layers
from toolchain.decoders.shapes import LEARNED_OFFSET, OPT_FACTS, Job, Shape
from toolchain.decoders.step import IDS, POSITION, step_graph
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Role

Values = Any
REQUESTS, T_MAX = 3, 24
LLAMA = Shape("llama", 2, 64, 4, 2, 16, 96, 160)
SHAPES = {
    "llama": LLAMA,
    "window": Shape("window", 2, 64, 4, 2, 16, 96, 160, window=4),
    "opt": Shape("opt", 2, 64, 4, 4, 16, 96, 160, **{**OPT_FACTS, "positions": T_MAX + LEARNED_OFFSET}),
    "mixture": Shape("mixture", 1, 64, 4, 2, 16, 96, 160, experts=4, active=2),
    "qwen3": Shape("qwen3", 2, 64, 4, 2, 16, 96, 160, qk_norm=True, qkv_bias=True),
    "gemma2": Shape("gemma2", 2, 64, 4, 2, 16, 96, 160, activation="GELU_TANH", tied=True, window=4, whole_every=2,
                    post_norm=True),
    "phi": Shape("phi", 2, 64, 4, 4, 16, 96, 160, gated=False, activation="GELU_TANH", norm="LAYER", qkv_bias=True,
                 output_bias=True, ffn_bias=True, head_bias=True, parallel=True, shared_norm=True, rotary=8),
    "neox": Shape("neox", 2, 64, 4, 4, 16, 96, 160, gated=False, activation="GELU", norm="LAYER", qkv_bias=True,
                  output_bias=True, ffn_bias=True, parallel=True, rotary=4),
    "shared": Shape("shared", 2, 64, 4, 2, 16, 96, 160, experts=4, active=2, shared_ffn=48, dense_layers=1,
                    dense_ffn=112),
    "latent": Shape("latent", 2, 64, 4, 4, 24, 96, 160, latent=40, latent_rotary=8, value_dim=12),
    "query latent": Shape("query latent", 2, 64, 4, 4, 24, 96, 160, latent=40, latent_rotary=8, query_latent=48,
                          value_dim=32, experts=4, active=2, shared_ffn=48, dense_layers=1, dense_ffn=112),
}  # fmt: skip


DEFAULT = (1, 9, "all"), (5, 6, "all"), (7, 0, "none")
"""Tokens, position of the first, and passes."""


class Numbers:
    """A decoder in numpy, fp32, with the weights of a graph."""

    def __init__(self, job: Job, weights: dict[str, Values], caches: dict[str, Values]) -> None:
        self.job, self.shape = job, job.shape
        self.w = {name: values.astype(np.float32) for name, values in weights.items()}
        self.caches = {name: values.astype(np.float32) for name, values in caches.items()}

    def logits(self, ids: Values, first: int) -> Values:
        """Of the last token of each request; ids: requests x tokens."""
        shape, tokens = self.shape, ids.shape[1]
        x = self.w["embedding.table"][ids]
        if shape.positions:
            x = x + self.w["positions.table"][LEARNED_OFFSET + first :][:tokens]
        for layer in range(self.job.layers):
            window = 0 if shape.whole_every and layer % shape.whole_every == shape.whole_every - 1 else shape.window
            made = x + self._attention(f"layer{layer}.attention", x, first, window)
            x = made + self._feed_forward(f"layer{layer}.ffn", x if shape.parallel else made, layer)
        x = self._norm("head.norm", x[:, -1])
        matrix = self.w["embedding.table"].T if shape.tied else self.w["head.weights"]
        return x @ matrix + self.w.get("head.bias", np.float32(0))

    def _norm(self, name: str, x: Values) -> Values:
        if self.shape.norm == "LAYER":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.w[f"{name}.gamma"]
        return x if self.shape.norm == "RMS" else x + self.w[f"{name}.beta"]

    def _product(self, name: str, x: Values) -> Values:
        return x @ self.w[f"{name}.weights"] + self.w.get(f"{name}.bias", np.float32(0))

    def _rotated(self, x: Values, first: int) -> Values:
        """x (requests, tokens, heads, elements with position)."""
        cos, sin = (self.w[f"rotary.{part}"][first : first + x.shape[1], None] for part in ("cos", "sin"))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)

    def _latent_attention(self, name: str, x: Values, first: int) -> Values:
        """Keys and values of all heads expanded from latents, which the device absorbs."""
        shape, (requests, tokens, _) = self.shape, x.shape
        heads, rotary, end = shape.heads, shape.latent_rotary, first + tokens
        normed = source = self._norm(f"{name}.norm", x)
        if shape.query_latent:
            source = self._norm(f"{name}.q_norm", self._product(f"{name}.q_down", normed))
        q_rotary, q_plain = (part.reshape(requests, tokens, heads, -1) for part in
                             np.split(self._product(f"{name}.q", source), [heads * rotary], axis=-1))  # fmt: skip
        down, cache = self._product(f"{name}.kv_down", normed), self.caches[f"{name}.0.keys.cache"][:, 0]
        cache[:, first:end, :rotary] = self._rotated(down[:, :, None, :rotary], first)[:, :, 0]
        cache[:, first:end, rotary:] = self._norm(f"{name}.kv_norm", down[..., rotary:])
        latent = cache[:, :end, rotary:]
        up, out = (self.w[f"{name}.{part}.weights"].reshape(heads, -1, n) for part, n in
                   (("absorbed", shape.latent), ("values", shape.value_dim)))  # fmt: skip
        keys, values = np.einsum("btl,hdl->bhtd", latent, up), np.einsum("btl,hlv->bhtv", latent, out)
        scores = np.einsum("bqhd,bhtd->bhqt", q_plain, keys)
        scores += np.einsum("bqhr,btr->bhqt", self._rotated(q_rotary, first), cache[:, :end, :rotary])
        hidden = np.arange(end)[None] > np.arange(first, end)[:, None]
        seen = softmax(np.where(hidden, -np.inf, scores * shape.head_dim**-0.5)) @ values
        return self._ended(f"{name}.output", seen.transpose(0, 2, 1, 3).reshape(requests, tokens, -1))

    def _attention(self, name: str, x: Values, first: int, window: int) -> Values:
        if self.shape.latent:
            return self._latent_attention(name, x, first)
        shape, (requests, tokens, _) = self.shape, x.shape
        qkv = self._product(f"{name}.qkv", self._norm(f"{name}.norm", x)).reshape(requests, tokens, -1, shape.head_dim)
        heads, kv, turned = shape.heads, shape.kv_heads, shape.rotary or shape.head_dim
        if shape.qk_norm:  # of values, too: what the product is that lies in the same rows
            size = np.sqrt((qkv * qkv).mean(-1, keepdims=True) + 1e-5)
            qkv = qkv / size * self.w[f"{name}.qk_norm.gamma"]
        if not shape.positions:
            qkv[:, :, : heads + kv, :turned] = self._rotated(qkv[:, :, : heads + kv, :turned], first)
        q, seen = qkv[:, :, :heads].transpose(0, 2, 1, 3), []
        for part, kept in enumerate(("keys", "values")):
            cache = self.caches[f"{name}.0.{kept}.cache"]
            new = qkv[:, :, heads + part * kv : heads + (part + 1) * kv]
            cache[:, :, first : first + tokens] = new.transpose(0, 2, 1, 3)
            seen.append(np.repeat(cache[:, :, : first + tokens], heads // kv, axis=1))
        scores = q @ seen[0].transpose(0, 1, 3, 2) * shape.head_dim**-0.5
        at, key = np.arange(first, first + tokens)[:, None], np.arange(first + tokens)[None]
        hidden = (key > at) | ((key <= at - window) if window else False)
        out = softmax(np.where(hidden, -np.inf, scores)) @ seen[1]
        return self._ended(f"{name}.output", out.transpose(0, 2, 1, 3).reshape(requests, tokens, -1))

    def _ended(self, name: str, x: Values) -> Values:
        made = self._product(name, x)
        return self._norm(f"{name}.post", made) if self.shape.post_norm else made

    def _feed_forward(self, name: str, x: Values, layer: int) -> Values:
        shape = self.shape
        normed = self._norm(f"{name}.norm" if not shape.shared_norm else f"layer{layer}.attention.norm", x)
        if shape.experts == 1 or layer < shape.dense_layers:
            return self._expert(name, normed)
        together = self._expert(f"{name}.shared", normed) if shape.shared_ffn else np.float32(0)
        rows = normed.reshape(-1, shape.width)
        weights, out = softmax(rows @ self.w[f"{name}.router.weights"]), np.zeros_like(rows)
        blocks = shape.experts // shape.active
        for block in range(blocks):
            part = slice(-(-len(rows) * block // blocks), -(-len(rows) * (block + 1) // blocks))
            for expert in range(block * shape.active, (block + 1) * shape.active):
                out[part] += self._expert(f"{name}.{expert}", rows[part]) * weights[part, expert : expert + 1]
        return out.reshape(x.shape) + together

    def _expert(self, name: str, x: Values) -> Values:
        up = self._product(f"{name}.up", x)
        act = {
            "SILU": lambda x: x / (1 + np.exp(-x)), "RELU": lambda x: np.maximum(x, 0),
            "GELU": lambda x: x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2,
            "GELU_TANH": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
        }[self.shape.activation]  # fmt: skip
        inner = act(self._product(f"{name}.gate", x)) * up if self.shape.gated else act(up)
        return self._ended(f"{name}.down", inner) if name.count(".") == 1 else self._product(
            f"{name}.down", inner)  # fmt: skip


def softmax(x: Values) -> Values:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def compiled(job: Job, tokens: int, rng: np.random.Generator, passes: str) -> tuple[Program, dict[str, Values]]:
    """The step with random weights, and these."""
    graph = step_graph(job, tokens)
    for name, tensor in graph.tensors.items():
        if tensor.role is Role.WEIGHT and not tensor.view_of:
            spread = tensor.shape[0] ** -0.5 if name.endswith("weights") else 0.5
            values = rng.uniform(-1, 1, tensor.shape) * spread + name.endswith("gamma")
            graph.constants[name] = values.astype(NUMPY[tensor.dtype])
    return compile_layers(graph, target_of(NpuConfig()), passes=passes), dict(graph.constants)


CASES = [
    pytest.param(name, *step, passes, marks=(pytest.mark.slow,) * ((*step, passes) not in DEFAULT))
    for name, shape in SHAPES.items()
    for step in ((1, 0), (1, 9), (7, 0), (5, 6))
    for passes in ("all", "none")
    if not shape.positions or step != (5, 6)  # a prompt with learned positions begins at 0
]


@pytest.mark.parametrize(("name", "tokens", "first", "passes"), CASES)
def test_a_step_computes_the_logits_of_numpy(name: str, tokens: int, first: int, passes: str) -> None:
    shape, rng = SHAPES[name], np.random.default_rng(3)
    job = Job(shape, shape.layers, T_MAX, REQUESTS, kv_bits=lambda layer, head: 16)
    program, weights = compiled(job, tokens, rng, passes)
    tensors = program.graph.tensors
    caches = {
        one.id: rng.uniform(-1, 1, one.shape).astype(np.float16)
        for one in tensors.values() if one.role is Role.KV and not one.view_of
    }  # fmt: skip
    ids = rng.integers(0, shape.vocab, (REQUESTS, tokens)).astype(np.int32)
    given = {POSITION: np.array([first], np.int32), IDS: ids, **caches}
    machine = FunctionalMachine(program, NpuConfig(), {key: values.tobytes() for key, values in given.items()})
    machine.run(program.commands)
    want = Numbers(job, weights, caches).logits(ids, first)
    logits = np.frombuffer(machine.read("head.out"), np.float16).reshape(want.shape)
    np.testing.assert_allclose(logits.astype(np.float32), want, rtol=0.02, atol=0.03)
    chosen = np.frombuffer(machine.read(IDS), np.int32)[:REQUESTS]
    np.testing.assert_array_equal(chosen, logits.argmax(axis=1))
