"""LSTM, GRU and RNN. onnx.reference lacks `sequence_lens`, `clip`, `input_forget` and most activations."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from toolchain.onnx_reference import Operator

Function = Callable[[Any], Any]
_PLAIN: dict[str, Function] = {
    "Relu": lambda x: np.maximum(x, 0), "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Tanh": np.tanh,
    "Softplus": lambda x: np.logaddexp(x, 0), "Softsign": lambda x: x / (1 + np.abs(x)),
}  # fmt: skip
_WITH_NUMBERS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "Elu": (lambda x, a: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))), (1.0,)),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
    "LeakyRelu": (lambda x, a: np.where(x > 0, x, a * x), (0.01,)),
    "ThresholdedRelu": (lambda x, a: np.where(x > a, x, 0), (1.0,)),
}
"""Activations with parameters alpha and beta, and their defaults."""


def _functions(names: Sequence[str], alpha: Sequence[float], beta: Sequence[float]) -> Iterator[Function]:
    """Yield the activations of a layer; each with parameters consumes the next of them."""
    parameters = [list(alpha), list(beta)]
    for name in names:
        if name in _PLAIN:
            yield _PLAIN[name]
            continue
        function, usual = _WITH_NUMBERS[name]
        numbers = [queue.pop(0) if queue else number for queue, number in zip(parameters, usual, strict=False)]
        yield partial(_apply, function, numbers)


def _apply(function: Callable[..., Any], numbers: Sequence[float], x: Any) -> Any:
    return function(x, *numbers).astype(x.dtype)


class _RecurrentOperator(Operator):
    """Base class; `usual`: default activations of one direction."""

    usual: tuple[str, ...] = ()

    def _run(
        self, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, c: Any = None, p: Any = None,
        **attributes: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        kind, wide, self._attribute_values = x.dtype, np.promote_types(x.dtype, np.float32), attributes
        if attributes.get("layout"):
            x, h, c = (None if tensor is None else tensor.swapaxes(0, 1) for tensor in (x, h, c))
        ways, rows, hidden = r.shape
        names = attributes["activations"] or self.usual * ways
        functions = list(_functions(names, attributes["activation_alpha"] or (), attributes["activation_beta"] or ()))
        sequence, last = np.zeros((len(x), ways, x.shape[1], hidden), wide), []
        for way in range(ways):
            weights = [weight[way].astype(wide) for weight in (w, r)]
            weights += np.split(np.zeros(2 * rows, wide) if b is None else b[way].astype(wide), 2)
            weights += np.split(np.zeros(3 * hidden, wide) if p is None else p[way].astype(wide), 3)
            starts = [h, c][: 2 if "LSTM" in type(self).__name__ else 1]
            state = [
                np.zeros((x.shape[1], hidden), wide) if start is None else start[way].astype(wide) for start in starts
            ]
            backward, activations = attributes["direction"] == "reverse" or way == 1, functions[way * len(self.usual) :]
            for at in reversed(range(len(x))) if backward else range(len(x)):
                result = self._step(x[at].astype(wide), state, weights, activations)
                alive = np.array(True) if lengths is None else (at < lengths)[:, None]
                sequence[at, way] = np.where(alive, result[0], 0)
                state = [np.where(alive, new, old) for new, old in zip(result, state, strict=True)]
            last.append(state)
        outputs = [sequence, *(np.stack(states) for states in zip(*last, strict=True))]
        if attributes.get("layout"):
            outputs = [sequence.transpose(2, 0, 1, 3), *(output.swapaxes(0, 1) for output in outputs[1:])]
        return tuple(output.astype(kind) for output in outputs)

    def _step(self, x: Any, state: list[Any], weights: list[Any], functions: list[Function]) -> list[Any]:
        raise NotImplementedError

    def _clipped(self, x: Any) -> Any:
        limit = self._attribute_values["clip"]
        return x if limit is None else np.clip(x, -limit, limit)


class LSTM(_RecurrentOperator):
    usual = ("Sigmoid", "Tanh", "Tanh")

    def _step(self, x: Any, state: list[Any], weights: list[Any], functions: list[Function]) -> list[Any]:
        (h, c), (w, r, wb, rb, pi, po, pf), (f, g, k) = state, weights, functions[:3]
        i, o, forget, new = np.split(x @ w.T + h @ r.T + wb + rb, 4, axis=1)
        i = f(self._clipped(i + pi * c))
        forget = 1 - i if self._attribute_values["input_forget"] else f(self._clipped(forget + pf * c))
        cell = forget * c + i * g(self._clipped(new))
        return [f(self._clipped(o + po * cell)) * k(cell), cell]


class GRU(_RecurrentOperator):
    usual = ("Sigmoid", "Tanh")

    def _step(self, x: Any, state: list[Any], weights: list[Any], functions: list[Function]) -> list[Any]:
        (h,), (w, r, wb, rb), (f, g) = state, weights[:4], functions[:2]
        z, reset, new = np.split(x @ w.T + wb, 3, axis=1)
        (rz, rr, rn), (bz, br, bn) = np.split(r, 3), np.split(rb, 3)
        z, reset = (f(self._clipped(gate + h @ of.T + bias)) for gate, of, bias in ((z, rz, bz), (reset, rr, br)))
        linear = self._attribute_values["linear_before_reset"]
        inner = reset * (h @ rn.T + bn) if linear else (reset * h) @ rn.T + bn
        return [(1 - z) * g(self._clipped(new + inner)) + z * h]


class RNN(_RecurrentOperator):
    usual = ("Tanh",)

    def _step(self, x: Any, state: list[Any], weights: list[Any], functions: list[Function]) -> list[Any]:
        w, r, wb, rb = weights[:4]
        return [functions[0](self._clipped(x @ w.T + state[0] @ r.T + wb + rb))]
