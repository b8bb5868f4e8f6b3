"""Decomposition of LSTM, GRU and RNN by steps: one product for the inputs of all steps, one per step for the state.

DynamicQuantizeLSTM of com.microsoft has quantized weights; the other operand of each product is quantized by its own
range at run time.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition, Tensor

_ACTIVATIONS: dict[str, dict[str, float]] = {
    "Relu": {}, "Sigmoid": {}, "Softplus": {}, "Softsign": {}, "Tanh": {}, "Elu": {"alpha": 1.0},
    "LeakyRelu": {"alpha": 0.01}, "ThresholdedRelu": {"alpha": 1.0}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
}  # fmt: skip
"""Activation -> defaults of its parameters."""
_Activation = Callable[[Tensor], Tensor]
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
"""Operator -> default activations of one direction."""
MAX_STEPS = 4096
LSTM = (
    "activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget",
)  # fmt: skip
"""Attributes of DynamicQuantizeLSTM of com.microsoft."""
RECURRENT = (*LSTM, "layout", "linear_before_reset")
"""Attributes of LSTM, GRU and RNN."""


class _Direction(NamedTuple):
    """Operands of the steps of one direction."""

    gates: list[Tensor]
    """Input part of all gates, for each step in time order: batch x (gates x hidden)."""
    recurrent: Tensor
    """Recurrent weights."""
    state_bias: Tensor | None
    """Recurrent bias of the hidden gate of a GRU."""
    functions: list[_Activation]
    peepholes: list[Tensor]


class _RecurrentLayer:
    """Decomposition of a recurrent node."""

    def __init__(self, parts: Decomposition) -> None:
        node = parts.node
        self.parts, self.node, self.kind = parts, node, node.proto.op_type.removeprefix("DynamicQuantize")
        self.batch_first = bool(node.attribute("layout", 0))
        shape = node.shape(0)
        self.steps, self.batch, self.width = (shape[1], shape[0], shape[2]) if self.batch_first else shape
        self.directions, self.hidden = node.shape(2)[0], self._hidden()
        self.gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[self.kind]
        if self.steps > MAX_STEPS:
            node.refuse(f"{self.steps} steps: supported are {MAX_STEPS}; bind a shorter sequence with --shape")
        self._check_shapes()
        self.clip = node.attribute("clip")
        self.alive = self._alive()
        source = parts.input(0)
        if self.batch_first:
            source = source.transpose(1, 0, 2)
        self.rows = source.reshape(self.steps * self.batch, self.width)

    def _hidden(self) -> int:
        """Return the size of the hidden state."""
        return self.node.shape(2)[2]

    def _weights(self) -> list[tuple[int, ...]]:
        """Return the shapes of input weights and recurrent weights."""
        wide = self.gates * self.hidden
        return [(self.directions, wide, self.width), (self.directions, wide, self.hidden)]

    def _check_shapes(self) -> None:
        """Raise ModelError for inconsistent input shapes, which onnx's inference does not compare."""
        state = self.directions, self.batch, self.hidden
        if self.batch_first:
            state = self.batch, self.directions, self.hidden
        wide = self.gates * self.hidden
        others = [(self.directions, 2 * wide), (self.batch,), state, state, (self.directions, 3 * self.hidden)]
        for index, expected in enumerate((*self._weights(), *others), 1):
            if self.node.has(index) and self.node.shape(index) != expected:
                self.node.refuse(
                    f"input {index} ({self.node.proto.input[index]}) has shape {list(self.node.shape(index))}: "
                    f"{self.width} features of {self.node.proto.input[0]} and {self.hidden} of the state ask for "
                    f"{list(expected)}"
                )

    def _alive(self) -> list[Tensor] | None:
        """Return for each step the mask of sequences that have not ended; None if all have full length."""
        if not self.node.has(4):
            return None
        parts, lengths = self.parts, self.node.constant(4)
        if lengths is None:
            column = parts.input(4).reshape(self.batch, 1)
            kind = self.node.numpy_type(4)
            return [parts.make("Less", np.array(step, kind), column) for step in range(self.steps)]
        if (lengths == self.steps).all():
            return None
        return [parts.constant((step < lengths).reshape(-1, 1)) for step in range(self.steps)]

    def functions(self, direction: int) -> list[_Activation]:
        count = len(DEFAULTS[self.kind])
        names = self.node.texts("activations") or DEFAULTS[self.kind] * self.directions
        queues = {name: list(self.node.attribute(f"activation_{name}", [])) for name in ("alpha", "beta")}
        functions: list[_Activation] = []
        for name in names:
            if name not in _ACTIVATIONS:
                self.node.refuse(f"activation {name}: supported are {', '.join(_ACTIVATIONS)}")
            numbers = {key: queues[key].pop(0) if queues[key] else default
                       for key, default in _ACTIVATIONS[name].items()}  # fmt: skip
            functions.append(partial(self.parts.make, name, **numbers))
        return functions[direction * count : (direction + 1) * count]

    def direction(self, index: int) -> _Direction:
        parts, wide = self.parts, self.gates * self.hidden
        bias, state_bias = None, None
        if self.node.has(3):
            biases = parts.row(3, index)
            input_bias, state = biases.slice(0, 0, wide), biases.slice(0, wide, 2 * wide)
            if self.kind == "GRU" and self.node.attribute("linear_before_reset", 0):
                state_bias = state.slice(0, 2 * self.hidden, wide)
                zeros = parts.constant(np.zeros(self.hidden, parts.kind))
                state = parts.joined([state.slice(0, 0, 2 * self.hidden), zeros], 0)
            bias = input_bias + state
        products = self._inputs(index, bias)
        gates = [products.slice(0, step * self.batch, (step + 1) * self.batch) for step in range(self.steps)]
        peepholes = []
        if self.kind == "LSTM" and self.node.has(7):
            weights = parts.row(7, index)
            peepholes = [weights.slice(0, at * self.hidden, (at + 1) * self.hidden) for at in range(3)]
        return _Direction(gates, parts.row(2, index), state_bias, self.functions(index), peepholes)

    def _inputs(self, index: int, bias: Tensor | None) -> Tensor:
        """Return the inputs of all steps times the weights of a direction, plus the bias, if any."""
        return self.parts.make("Gemm", self.rows, self.parts.row(1, index), *[bias] if bias else [], transB=1)

    def initial(self, index: int, direction: int) -> Tensor:
        """Return the initial state, batch x hidden."""
        parts = self.parts
        if not self.node.has(index):
            return parts.constant(np.zeros((self.batch, self.hidden), parts.kind))
        source = parts.input(index)
        if self.batch_first:
            source = source.transpose(1, 0, 2)
        return source.slice(0, direction, direction + 1).reshape(self.batch, self.hidden)

    def clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clip(-self.clip, self.clip)

    def run(self) -> None:
        """Compose the node."""
        mode = self.node.attribute("direction", "forward")
        rows: list[list[Tensor]] = [[] for _ in range(self.steps)]
        last: list[list[Tensor]] = []
        for index in range(self.directions):
            order = list(range(self.steps))
            if mode == "reverse" or index == 1:
                order.reverse()
            outputs, state = self._steps(self.direction(index), index, order)
            for step, y in zip(order, outputs, strict=True):
                rows[step].append(y)
            last.append(state)
        if self.node.gives(0):
            self._result(0, [y for row in rows for y in row], self.steps)
        for output in range(1, 3):
            if self.node.gives(output):
                self._result(output, [states[output - 1] for states in last])

    def _steps(self, d: _Direction, index: int, order: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        """Return (hidden state after each step, state after the last)."""
        step_of = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.kind]
        state = [self.initial(5, index), *([self.initial(6, index)] if self.kind == "LSTM" else [])]
        outputs = []
        for step in order:
            after = step_of(d, d.gates[step], state)
            if self.alive is None:
                state, y = after, after[0]
            else:
                mask = self.alive[step]
                state = [mask.where(new, old) for new, old in zip(after, state, strict=True)]
                y = mask.where(after[0], 0)
            outputs.append(y)
        return outputs, state

    def _product(self, d: _Direction, h: Tensor) -> Tensor:
        """Return the state times the recurrent weights."""
        return self.parts.make("Gemm", h, d.recurrent, transB=1)

    def _gate(self, x: Tensor, at: int, count: int = 1) -> Tensor:
        return x.slice(1, at * self.hidden, (at + count) * self.hidden)

    def _rnn(self, d: _Direction, gates: Tensor, state: list[Tensor]) -> list[Tensor]:
        return [d.functions[0](self.clipped(gates + self._product(d, state[0])))]

    def _gru(self, d: _Direction, gates: Tensor, state: list[Tensor]) -> list[Tensor]:
        parts, h, (f, g) = self.parts, state[0], d.functions
        linear = bool(self.node.attribute("linear_before_reset", 0))
        if linear:
            product = self._product(d, h)
            candidate = self._gate(product, 2)
            product = self._gate(product, 0, 2)
        else:
            weights = d.recurrent.slice(0, 0, 2 * self.hidden)
            product = parts.make("Gemm", h, weights, transB=1)
        update_reset = f(self.clipped(self._gate(gates, 0, 2) + product))
        update, reset = self._gate(update_reset, 0), self._gate(update_reset, 1)
        if linear:
            inner = reset * (candidate + d.state_bias if d.state_bias else candidate)
        else:
            weights = d.recurrent.slice(0, 2 * self.hidden, 3 * self.hidden)
            inner = parts.make("Gemm", reset * h, weights, transB=1)
        new = g(self.clipped(self._gate(gates, 2) + inner))
        return [new + update * (h - new)]

    def _lstm(self, d: _Direction, gates: Tensor, state: list[Tensor]) -> list[Tensor]:
        (h, c), (f, g, k) = state, d.functions
        total = gates + self._product(d, h)
        split = [self._gate(total, at) for at in range(4)]

        def gate(at: int, cell: Tensor, peephole: int, function: _Activation) -> Tensor:
            x = split[at]
            if d.peepholes and peephole >= 0:
                x = x + d.peepholes[peephole] * cell
            return function(self.clipped(x))

        opened = gate(0, c, 0, f)
        forget = 1 - opened if self.node.attribute("input_forget", 0) else gate(2, c, 2, f)
        new = gate(3, c, -1, g)
        cell = forget * c + opened * new
        out = gate(1, cell, 1, f)
        return [out * k(cell), cell]

    def _result(self, index: int, tensors: list[Tensor], *lead: int) -> None:
        """Compose an output of shape (*lead, directions, batch, hidden), or batch first."""
        flat, shape = self.parts.joined(tensors, 0), (*lead, self.directions, self.batch, self.hidden)
        if not self.batch_first:
            self.parts.result("Reshape", flat, shape, index=index)
            return
        order = [2, 0, 1, 3] if lead else [1, 0, 2]
        self.parts.result("Transpose", flat.reshape(*shape), index=index, perm=order)


class _QuantizedLayer(_RecurrentLayer):
    """Decomposition with quantized weights, inputs x gates and hidden x gates, each with a scale and a zero point."""

    def _hidden(self) -> int:
        return self.node.shape(2)[1]

    def _weights(self) -> list[tuple[int, ...]]:
        return [(count, columns, rows) for count, rows, columns in super()._weights()]

    def _inputs(self, index: int, bias: Tensor | None) -> Tensor:
        products = self._of_codes(self.rows, index, 1)
        return products + bias if bias else products

    def direction(self, index: int) -> _Direction:
        self._index = index
        return super().direction(index)

    def _product(self, d: _Direction, h: Tensor) -> Tensor:
        return self._of_codes(h, self._index, 2)

    def _of_codes(self, x: Tensor, index: int, weights: int) -> Tensor:
        """Return a product with the weights at input 1 or 2, whose scale and zero point are inputs 8, 9 or 10, 11."""
        parts, factor = self.parts, 6 + 2 * weights
        codes, scale, zero = parts.several(3, "DynamicQuantizeLinear", x)
        product = parts.make("MatMulInteger", codes, parts.row(weights, index), zero, parts.row(factor + 1, index))
        scales = scale * parts.row(factor, index)
        return product.cast(np.float32) * scales


def quantized_lstm(parts: Decomposition) -> None:
    """Compose DynamicQuantizeLSTM."""
    _QuantizedLayer(parts).run()


def recurrent(parts: Decomposition) -> None:
    """Compose LSTM, GRU or RNN."""
    _RecurrentLayer(parts).run()
