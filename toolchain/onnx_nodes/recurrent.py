"""Decomposition of LSTM, GRU and RNN by steps: one product for the inputs of all steps, one per step for the state.

DynamicQuantizeLSTM of com.microsoft has quantized weights; the other operand of each product is quantized by its own
range at run time.
"""

from typing import Any, NamedTuple

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition

_PLAIN = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
_WITH_ALPHA = {"Elu": 1.0, "LeakyRelu": 0.01, "ThresholdedRelu": 1.0}
"""Activations with one parameter -> its default."""
_HARD = (0.2, 0.5)
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
"""Operator -> default activations of one direction."""
MAX_STEPS = 4096
LSTM = (
    "activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget",
)  # fmt: skip
"""Attributes of DynamicQuantizeLSTM of com.microsoft."""
RECURRENT = (*LSTM, "layout", "linear_before_reset")
"""Attributes of LSTM, GRU and RNN."""


class _Activation(NamedTuple):
    name: str
    alpha: float | None
    beta: float | None

    def apply(self, parts: Decomposition, x: str) -> str:
        if self.name in _PLAIN:
            return parts.make(self.name, x)
        if self.name in _WITH_ALPHA:
            return parts.make(self.name, x, alpha=_WITH_ALPHA[self.name] if self.alpha is None else self.alpha)
        if self.name == "HardSigmoid":
            alpha, beta = (
                _HARD[index] if value is None else value for index, value in enumerate((self.alpha, self.beta))
            )
            return parts.make(self.name, x, alpha=alpha, beta=beta)
        parts.node.refuse(f"activation {self.name}: supported are {', '.join((*_PLAIN, *_WITH_ALPHA, 'HardSigmoid'))}")


class _Direction(NamedTuple):
    """Operands of the steps of one direction."""

    gates: list[str]
    """Input part of all gates, for each step in time order: batch x (gates x hidden)."""
    recurrent: str
    """Recurrent weights."""
    state_bias: str
    """Recurrent bias of the hidden gate of a GRU."""
    functions: list[_Activation]
    peepholes: list[str]


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
            source = parts.make("Transpose", source, perm=[1, 0, 2])
        self.rows = parts.reshaped(source, self.steps * self.batch, self.width)

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

    def _alive(self) -> list[str] | None:
        """Return for each step the mask of sequences that have not ended; None if all have full length."""
        if not self.node.has(4):
            return None
        parts, lengths = self.parts, self.node.constant(4)
        if lengths is None:
            column = parts.reshaped(parts.input(4), self.batch, 1)
            kind = self.node.numpy_type(4)
            return [parts.make("Less", parts.constant(np.array(step, kind)), column) for step in range(self.steps)]
        if (lengths == self.steps).all():
            return None
        return [parts.constant((step < lengths).reshape(-1, 1)) for step in range(self.steps)]

    def functions(self, direction: int) -> list[_Activation]:
        usual = DEFAULTS[self.kind]
        names = self.node.texts("activations") or usual * self.directions
        numbers: dict[str, list[Any]] = {}
        for name in ("alpha", "beta"):
            remaining = list(self.node.attribute(f"activation_{name}", []))
            takes = (*_WITH_ALPHA, "HardSigmoid") if name == "alpha" else ("HardSigmoid",)
            numbers[name] = [remaining.pop(0) if remaining and name in takes else None for name in names]
        functions_of_layer = [_Activation(*row) for row in zip(names, numbers["alpha"], numbers["beta"], strict=True)]
        return functions_of_layer[direction * len(usual) : (direction + 1) * len(usual)]

    def direction(self, index: int) -> _Direction:
        parts, wide = self.parts, self.gates * self.hidden
        bias, state_bias = "", ""
        if self.node.has(3):
            biases = parts.row(3, index)
            input_bias, state = parts.sliced(biases, 0, 0, wide), parts.sliced(biases, 0, wide, 2 * wide)
            if self.kind == "GRU" and self.node.attribute("linear_before_reset", 0):
                state_bias = parts.sliced(state, 0, 2 * self.hidden, wide)
                zeros = parts.constant(np.zeros(self.hidden, parts.kind))
                state = parts.joined([parts.sliced(state, 0, 0, 2 * self.hidden), zeros], 0)
            bias = parts.make("Add", input_bias, state)
        products = self._inputs(index, bias)
        gates = [parts.sliced(products, 0, step * self.batch, (step + 1) * self.batch) for step in range(self.steps)]
        peepholes = []
        if self.kind == "LSTM" and self.node.has(7):
            weights = parts.row(7, index)
            peepholes = [parts.sliced(weights, 0, at * self.hidden, (at + 1) * self.hidden) for at in range(3)]
        return _Direction(gates, parts.row(2, index), state_bias, self.functions(index), peepholes)

    def _inputs(self, index: int, bias: str) -> str:
        """Return the inputs of all steps times the weights of a direction, plus the bias, if any."""
        return self.parts.make("Gemm", self.rows, self.parts.row(1, index), *([bias] if bias else []), transB=1)

    def initial(self, index: int, direction: int) -> str:
        """Return the initial state, batch x hidden."""
        parts = self.parts
        if not self.node.has(index):
            return parts.constant(np.zeros((self.batch, self.hidden), parts.kind))
        source = parts.input(index)
        if self.batch_first:
            source = parts.make("Transpose", source, perm=[1, 0, 2])
        row = parts.sliced(source, 0, direction, direction + 1)
        return parts.reshaped(row, self.batch, self.hidden)

    def clipped(self, x: str) -> str:
        if self.clip is None:
            return x
        return self.parts.make("Clip", x, self.parts.number(-self.clip), self.parts.number(self.clip))

    def run(self) -> None:
        """Compose the node."""
        mode = self.node.attribute("direction", "forward")
        rows: list[list[str]] = [[] for _ in range(self.steps)]
        last: list[list[str]] = []
        for index in range(self.directions):
            order = list(range(self.steps))
            if mode == "reverse" or index == 1:
                order.reverse()
            outputs, state = self._steps(self.direction(index), index, order)
            for step, y in zip(order, outputs, strict=True):
                rows[step].append(y)
            last.append(state)
        if self.node.gives(0):
            self._sequence(rows)
        for output in range(1, 3):
            if self.node.gives(output):
                self._state([states[output - 1] for states in last], output)

    def _steps(self, d: _Direction, index: int, order: list[int]) -> tuple[list[str], list[str]]:
        """Return (hidden state after each step, state after the last)."""
        parts, step_of = self.parts, {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.kind]
        state = [self.initial(5, index), *([self.initial(6, index)] if self.kind == "LSTM" else [])]
        outputs = []
        for step in order:
            after = step_of(d, d.gates[step], state)
            if self.alive is None:
                state, y = after, after[0]
            else:
                mask = self.alive[step]
                state = [parts.make("Where", mask, new, old) for new, old in zip(after, state, strict=True)]
                y = parts.make("Where", mask, after[0], parts.number(0))
            outputs.append(y)
        return outputs, state

    def _product(self, d: _Direction, h: str) -> str:
        """Return the state times the recurrent weights."""
        return self.parts.make("Gemm", h, d.recurrent, transB=1)

    def _gate(self, x: str, at: int, count: int = 1) -> str:
        return self.parts.sliced(x, 1, at * self.hidden, (at + count) * self.hidden)

    def _rnn(self, d: _Direction, gates: str, state: list[str]) -> list[str]:
        total = self.parts.make("Add", gates, self._product(d, state[0]))
        return [d.functions[0].apply(self.parts, self.clipped(total))]

    def _gru(self, d: _Direction, gates: str, state: list[str]) -> list[str]:
        parts, h, (f, g) = self.parts, state[0], d.functions
        linear = bool(self.node.attribute("linear_before_reset", 0))
        if linear:
            product = self._product(d, h)
            candidate = self._gate(product, 2)
            product = self._gate(product, 0, 2)
        else:
            weights = parts.sliced(d.recurrent, 0, 0, 2 * self.hidden)
            product = parts.make("Gemm", h, weights, transB=1)
        update_reset = parts.make("Add", self._gate(gates, 0, 2), product)
        update_reset = f.apply(parts, self.clipped(update_reset))
        update, reset = self._gate(update_reset, 0), self._gate(update_reset, 1)
        if linear:
            inner = parts.make("Mul", reset, parts.make("Add", candidate, d.state_bias) if d.state_bias else candidate)
        else:
            weights = parts.sliced(d.recurrent, 0, 2 * self.hidden, 3 * self.hidden)
            inner = parts.make("Gemm", parts.make("Mul", reset, h), weights, transB=1)
        new = g.apply(parts, self.clipped(parts.make("Add", self._gate(gates, 2), inner)))
        old = parts.make("Mul", update, parts.make("Sub", h, new))
        return [parts.make("Add", new, old)]

    def _lstm(self, d: _Direction, gates: str, state: list[str]) -> list[str]:
        parts, (h, c), (f, g, k) = self.parts, state, d.functions
        total = parts.make("Add", gates, self._product(d, h))
        split = [self._gate(total, at) for at in range(4)]

        def gate(at: int, cell: str, peephole: int, function: _Activation) -> str:
            x = split[at]
            if d.peepholes and peephole >= 0:
                x = parts.make("Add", x, parts.make("Mul", d.peepholes[peephole], cell))
            return function.apply(parts, self.clipped(x))

        opened = gate(0, c, 0, f)
        if self.node.attribute("input_forget", 0):
            forget = parts.make("Sub", parts.number(1), opened)
        else:
            forget = gate(2, c, 2, f)
        new = gate(3, c, -1, g)
        cell = parts.make("Add", parts.make("Mul", forget, c), parts.make("Mul", opened, new))
        out = gate(1, cell, 1, f)
        return [parts.make("Mul", out, k.apply(parts, cell)), cell]

    def _sequence(self, rows: list[list[str]]) -> None:
        """Compose Y: steps x directions x batch x hidden, or batch first."""
        parts = self.parts
        flat = parts.joined([y for row in rows for y in row], 0)
        shape = (self.steps, self.directions, self.batch, self.hidden)
        if self.batch_first:
            parts.result("Transpose", parts.reshaped(flat, *shape), perm=[2, 0, 1, 3])
        else:
            parts.result("Reshape", flat, parts.integers(*shape))

    def _state(self, last: list[str], output: int) -> None:
        """Compose Y_h and Y_c: directions x batch x hidden, or batch first."""
        parts, shape = self.parts, (self.directions, self.batch, self.hidden)
        flat = parts.joined(last, 0)
        if self.batch_first:
            parts.result("Transpose", parts.reshaped(flat, *shape), index=output, perm=[1, 0, 2])
        else:
            parts.result("Reshape", flat, parts.integers(*shape), index=output)


class _QuantizedLayer(_RecurrentLayer):
    """Decomposition with quantized weights, inputs x gates and hidden x gates, each with a scale and a zero point."""

    def _hidden(self) -> int:
        return self.node.shape(2)[1]

    def _weights(self) -> list[tuple[int, ...]]:
        return [(count, columns, rows) for count, rows, columns in super()._weights()]

    def _inputs(self, index: int, bias: str) -> str:
        products = self._of_codes(self.rows, index, 1)
        return self.parts.make("Add", products, bias) if bias else products

    def direction(self, index: int) -> _Direction:
        self._index = index
        return super().direction(index)

    def _product(self, d: _Direction, h: str) -> str:
        return self._of_codes(h, self._index, 2)

    def _of_codes(self, x: str, index: int, weights: int) -> str:
        """Return a product with the weights at input 1 or 2, whose scale and zero point are inputs 8, 9 or 10, 11."""
        parts, factor = self.parts, 6 + 2 * weights
        codes, scale, zero = parts.several(3, "DynamicQuantizeLinear", x)
        product = parts.make("MatMulInteger", codes, parts.row(weights, index), zero, parts.row(factor + 1, index))
        scales = parts.make("Mul", scale, parts.row(factor, index))
        return parts.make("Mul", parts.make("Cast", product, to=1), scales)


def quantized_lstm(parts: Decomposition) -> None:
    """Compose DynamicQuantizeLSTM."""
    _QuantizedLayer(parts).run()


def recurrent(parts: Decomposition) -> None:
    """Compose LSTM, GRU or RNN."""
    _RecurrentLayer(parts).run()
