"""Synthetic keys and values, and the errors of each method on them (docs/oaken.md)."""

from typing import Any, NamedTuple

import numpy as np

from npu_device.kv_quant.methods import METHODS
from npu_device.kv_quant.thresholds import RATIOS
from pyv_npu.kv_quant.ablations import Floats, Layer

TOKENS, HEADS, HEAD_DIM = 256, 8, 128
RATIO_SWEEP = (
    (0.10, 0.80, 0.10), (0.06, 0.82, 0.12), (0.08, 0.82, 0.10), (0.10, 0.82, 0.08), (0.12, 0.82, 0.06),
    (0.04, 0.86, 0.10), (0.06, 0.86, 0.08), (0.08, 0.86, 0.06), (0.10, 0.86, 0.04), (0.02, 0.90, 0.08),
    (0.03, 0.90, 0.07), (0.04, 0.90, 0.06), (0.05, 0.90, 0.05), (0.06, 0.90, 0.04), (0.02, 0.92, 0.06),
    (0.03, 0.92, 0.05), (0.04, 0.92, 0.04), (0.02, 0.94, 0.04), (0.01, 0.96, 0.03),
)  # fmt: skip
"""Outer, middle and inner shares, from the artifact's script explore_oaken.py."""


def keys(random: np.random.Generator, tokens: int = TOKENS, width: int = HEADS * HEAD_DIM) -> Floats:
    """Draw keys: each channel with its own scale, 2 % of channels with a large mean, and 0.1 % random outliers."""
    scale = random.lognormal(0, 0.5, width)
    mean = np.zeros(width)
    large = random.choice(width, max(1, width // 50), replace=False)
    mean[large] = random.uniform(4, 12, len(large)) * random.choice((-1, 1), len(large))
    x = random.standard_normal((tokens, width)) * scale + mean
    odd = random.random(x.shape) < 0.001
    x_keys: Floats = np.where(odd, x * random.uniform(4, 8, x.shape), x).astype(np.float32)
    return x_keys


def values(random: np.random.Generator, tokens: int = TOKENS, width: int = HEADS * HEAD_DIM) -> Floats:
    """Draw values from Student's t with 5 degrees of freedom, with scales of channels and tokens."""
    channel, token = random.lognormal(0, 0.3, width), random.lognormal(0, 0.3, (tokens, 1))
    x_values: Floats = (random.standard_t(5, (tokens, width)) * channel * token).astype(np.float32)
    return x_values


class Errors(NamedTuple):
    """Errors of a method: bits of an element, relative errors in the Euclidean norm."""

    method: str
    bits: float
    keys: float
    values: float


def relative(got: Any, reference: Any) -> float:
    return float(np.linalg.norm(got - reference) / np.linalg.norm(reference))


def errors(seed: int = 0) -> list[Errors]:
    """Return the errors of all methods."""
    tensors = dict(zip("kv", layer(seed), strict=True))
    rows = []
    for name, method in METHODS.items():
        parameters = {side: method.calibrate(x[: len(x) // 2], side, HEAD_DIM, RATIOS) for side, x in tensors.items()}
        stored = {side: method.store(x, side, HEAD_DIM, parameters[side]) for side, x in tensors.items()}
        bits = float(np.mean([part.bits for part in stored.values()]))
        rows.append(Errors(name, bits, *(relative(stored[side].numbers, tensors[side]) for side in "kv")))
    return rows


def layer(seed: int = 0) -> Layer:
    """Draw keys and values of a layer."""
    random = np.random.default_rng(seed)
    return keys(random), values(random)
