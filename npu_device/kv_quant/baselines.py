"""Other ways to quantize keys and values, for errors and bytes beside Oaken's (docs/oaken.md, "Baselines").

They follow the papers' granularity, not their code: KIVI (arXiv 2402.02750), KVQuant (arXiv 2401.18079), QServe
(arXiv 2405.04532). All take tokens (tokens, C) of one layer and give them back as they would be read.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_device.kv_quant import oaken
from npu_device.kv_quant.storage import Parameters

Floats = NDArray[np.float32]
Method = Callable[[Floats, str, int, Parameters], Floats]
"""(tokens, "k" or "v", head_dim, Oaken's parameters) -> numbers as read."""
GROUP = 128
"""Elements of a group of KIVI and QServe."""
SCALE_BITS = 32
"""fp16 min and step of a group."""
OUTLIERS = 0.01
"""Share that KVQuant keeps as fp16."""
OUTLIER_BITS = 32
"""Of one of them: the number and its index."""


def uniform(x: Floats, axis: int, bits: int = 4) -> Floats:
    """Asymmetric codes with fp16 min and step along an axis."""
    low = x.min(axis=axis, keepdims=True).astype(np.float16).astype(np.float32)
    step = (x.max(axis=axis, keepdims=True) - low) / np.float32((1 << bits) - 1)
    step = step.astype(np.float16).astype(np.float32)
    code = np.divide(x - low, step, out=np.zeros_like(x), where=step > 0)
    made: Floats = (np.clip(np.rint(code), 0, (1 << bits) - 1) * step + low).astype(np.float16).astype(np.float32)
    return made


def _grouped(x: Floats, size: int, bits: int = 4) -> Floats:
    """Groups of `size` neighbours of a token, or the whole token where it is no multiple."""
    size = size if x.shape[1] % size == 0 else x.shape[1]
    return uniform(x.reshape(len(x), -1, size), 2, bits).reshape(x.shape)


def _per_channel(x: Floats, bits: int = 4) -> Floats:
    """Groups of GROUP tokens of a channel."""
    parts = [uniform(x[at : at + GROUP], 0, bits) for at in range(0, len(x), GROUP)]
    return np.concatenate(parts)


def per_token(x: Floats, side: str, head_dim: int, _: Parameters, bits: int = 4) -> Floats:
    return uniform(x, 1, bits)


def qserve(x: Floats, side: str, head_dim: int, _: Parameters) -> Floats:
    """Per token and head, without the smoothing of channels, which needs weights."""
    return _grouped(x, min(GROUP, head_dim))


def kivi(x: Floats, side: str, head_dim: int, _: Parameters) -> Floats:
    """Keys per channel, values per token; no residual of the latest tokens."""
    return _per_channel(x) if side == "k" else _grouped(x, GROUP)


def kvquant(x: Floats, side: str, head_dim: int, _: Parameters) -> Floats:
    """1 % of the elements as they are, the others of a channel (keys) or token (values) by 16 levels: the means of
    equally full bins of a normal distribution, which stand for its offline k-means."""
    axis = 0 if side == "k" else 1
    middle = np.median(x, axis=axis, keepdims=True)
    distance = np.abs(x - middle)
    kept = distance > np.quantile(distance, 1 - OUTLIERS)
    inside = np.where(kept, middle, x)
    mean = inside.mean(axis=axis, keepdims=True, dtype=np.float32)
    deviation = np.maximum(inside.std(axis=axis, keepdims=True, dtype=np.float32), np.float32(1e-12))
    levels = _levels()
    scaled = (inside - mean) / deviation
    # the levels stretch over what there is: the largest element is the largest level
    reach = np.maximum(np.abs(scaled).max(axis=axis, keepdims=True), np.float32(1e-12)) / levels[-1]
    bounds = (levels[1:] + levels[:-1]) / 2
    made = levels[np.searchsorted(bounds, scaled / reach)] * reach * deviation + mean
    return np.where(kept, x, made).astype(np.float16).astype(np.float32)


def _levels() -> Floats:
    """NormalFloat-like: 16 quantiles of a normal distribution, symmetric (Dettmers et al., arXiv 2305.14314)."""
    from statistics import NormalDist

    normal = NormalDist()
    made = np.array([normal.inv_cdf((index + 0.5) / 16) for index in range(16)], np.float32)
    return made


def encoded(x: Floats, side: str, head_dim: int, parameters: Parameters) -> Floats:
    """Oaken."""
    thresholds, code = parameters.thresholds, parameters.code
    return oaken.decode(oaken.encode(x, thresholds, code), thresholds, code).astype(np.float32)


METHODS: dict[str, Method] = {
    "oaken": encoded,
    "uniform4": per_token,
    "uniform5": partial(per_token, bits=5),
    "qserve": qserve,
    "kivi": kivi,
    "kvquant": kvquant,
}
"""Name -> what is read of tokens."""


def stored_bits(method: str, x: NDArray[Any], head_dim: int, parameters: Parameters) -> float:
    """Bits of an element as stored: Oaken's are counted, the others follow from shapes."""
    width = x.shape[1]
    if method == "oaken":
        return 8 * oaken.encode(x, parameters.thresholds, parameters.code).payload / x.size
    if method.startswith("uniform"):
        return int(method.removeprefix("uniform")) + SCALE_BITS / width
    if method == "kvquant":
        return 4 + OUTLIERS * OUTLIER_BITS + SCALE_BITS / width
    group = min(GROUP, head_dim) if method == "qserve" else GROUP if width % GROUP == 0 else width
    return 4 + SCALE_BITS / group
