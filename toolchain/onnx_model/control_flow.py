"""Expansion of If, Loop and Scan to the nodes of their subgraphs."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper

from toolchain.onnx_model.open_rows import OpenRows
from toolchain.onnx_model.rewriter import MAX_NODES, Names
from toolchain.onnx_model.sequences import OPERATORS as SEQUENCES
from toolchain.onnx_model.whole_scan import WholeScan
from toolchain.onnx_nodes.messages import attributes_of, subgraphs
from toolchain.onnx_nodes.view import node_name

MAX_STEPS = 1024
"""Maximum number of steps of a Loop."""
UNFINISHED = ".unfinished"
"""Suffix of a Loop's name for an output that is 1 if the Loop would exceed its given maximum number of steps."""

_UNSHARED = frozenset((
    *SEQUENCES, "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
))  # fmt: skip
"""Operators on random numbers or sequences, whose equal nodes must not be shared."""


class Shared:
    """Tensors and nodes of subgraphs, shared between steps of a loop that contain equal ones. `nodes`: list of the
    graph's nodes, which may shrink again."""

    def __init__(self, nodes: list[Any]) -> None:
        self._nodes = nodes
        self._tensors: dict[bytes, str] = {}
        self._entries: dict[bytes | None, tuple[list[str], int, Any]] = {}
        """`key` -> (names of the outputs, number of nodes including it, last node)."""

    def tensor(self, tensor: Any, name: str) -> str:
        """Return the name of an earlier equal tensor, or `name`."""
        plain = deepcopy(tensor)
        plain.ClearField("name")
        return self._tensors.setdefault(hashlib.sha256(plain.SerializeToString()).digest(), name)

    @staticmethod
    def key(node: Any, names: Mapping[str, str]) -> bytes | None:
        """Return a key that is equal for equivalent nodes of subgraphs; None for a node that must not be shared.
        `names`: names of its inputs in the graph."""
        if node.op_type in _UNSHARED or any(graph.output for graph in subgraphs(node)):
            return None  # a subgraph refers to tensors of the step by other names than inputs
        plain = deepcopy(node)
        plain.ClearField("name")
        plain.ClearField("doc_string")
        plain.input[:] = [names.get(name, name) for name in node.input]
        plain.output[:] = ["x" if name else "" for name in node.output]
        return hashlib.sha256(plain.SerializeToString()).digest()

    def find(self, key: bytes | None) -> Sequence[str] | None:
        """Return the output names of an equal node; None for none."""
        if key not in self._entries:
            return None
        outputs, count, last = self._entries[key]
        return outputs if count <= len(self._nodes) and self._nodes[count - 1] is last else None

    def add(self, key: bytes | None, outputs: list[str], before: int) -> None:
        """Record a node that was just added; `before`: number of nodes before it."""
        if key is not None and len(self._nodes) > before:
            self._entries[key] = outputs, len(self._nodes), self._nodes[-1]


class ControlFlow(OpenRows):
    """Expansion of control flow in a graph that is rebuilt node by node. `steps`: maximum number of steps by Loop
    name."""

    def __init__(self, *arguments: Any, steps: Mapping[str, int], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._steps, self._prefixes, self._shared = steps, set[str](), Shared(self._nodes)
        self._inputs = {value.name for value in self._graph.input}

    def _if(self, proto: Any, names: Names) -> None:
        """Expand an If to the selected branch. If the condition is known only at run time, expand both, with results of
        equal shape."""
        condition = proto.input[0]
        if condition not in self.constants:
            self._merge_branches(proto, names)
            return
        condition_value = bool(self.constants[condition].reshape(-1)[0])
        results = self._inline(_branch(proto, condition_value), self._prefix(proto), dict(names))
        self._return(results, proto.output)

    def _return(self, results: Sequence[str], outputs: Sequence[str]) -> None:
        """Add the outputs that are results of a subgraph, as far as they are used."""
        for inner, outer in zip(results, outputs, strict=False):
            if outer:
                self._node("Identity", [inner], outer)

    def _inside(self, body: Any, step: int, scope: str, names: Names, state: Sequence[str]) -> dict[str, str]:
        """Return the names in the body of a Loop: step, condition and state."""
        inside = dict(names)
        for inner, values in zip(body.input, (np.array(step, np.int64), np.array(True)), strict=False):
            inside[inner.name] = self._constant_of(scope + inner.name, values)
        return inside | {inner.name: name for inner, name in zip(body.input[2:], state, strict=True)}

    def _merge_branches(self, proto: Any, names: Names) -> None:
        """Expand both branches and select between their results."""
        condition, prefix = proto.input[0], self._prefix(proto)
        branches = [self._inline(_branch(proto, yes), f"{prefix}{yes}/", dict(names)) for yes in (True, False)]
        self._match_shapes(branches, prefix)
        flag = self._flag(f"{prefix}condition", condition)
        for yes, no, outer in zip(*branches, proto.output, strict=True):
            if outer and not self._choose(flag, yes, no, outer):
                raise self._refuse(
                    proto, f"its branches make different shapes, so that its condition must be known before the run"
                    f"{self._advice(condition)}"
                )  # fmt: skip

    def _match_shapes(self, branches: Sequence[list[str]], prefix: str) -> None:
        """Reshape single elements to the higher rank of both branches: exporters of PaddlePaddle write a scalar in one
        branch and a vector in the other. `branches`: result names of each."""
        for index, names in enumerate(zip(*branches, strict=True)):
            shapes = [info.shape for name in names if (info := self.info.get(name)) is not None]
            if len(shapes) < len(names) or shapes[0] == shapes[1] or any(np.prod(shape) != 1 for shape in shapes):
                continue
            low, high = sorted((0, 1), key=lambda branch: len(shapes[branch]))
            shape = self._constant_of(f"{prefix}{low}/{index}/shape", np.array(shapes[high], np.int64))
            branches[low][index] = self._node("Reshape", [names[low], shape], f"{prefix}{low}/{index}/reshaped")

    def _loop(self, proto: Any, names: Names) -> None:
        """Unroll the steps of a Loop and join the outputs of all steps at the end."""
        body = next(attribute.g for attribute in proto.attribute if attribute.name == "body")
        inputs, node_count, counted = list(proto.input), len(self._nodes), len(self._graph.output)
        if any(name and name not in self.constants for name in inputs[:2]):
            self._open_loop(proto, body, names)
            return
        steps, guard = self._trips(inputs)
        state, prefix = inputs[2:], self._prefix(proto)
        scans: list[list[str]] = [[] for _ in body.output[1 + len(state) :]]
        for step in itertools.count():
            if not guard or (steps is not None and step >= steps):
                break
            if step >= MAX_STEPS:
                raise self._refuse(proto, f"more than {MAX_STEPS} steps: export a model with fewer")
            scope = f"{prefix}{step}/"
            condition, *values_out = self._inline(body, scope, self._inside(body, step, scope, names, state))
            if condition not in self.constants:
                del self._nodes[node_count:]
                del self._graph.output[counted:]
                self._open_loop(proto, body, names)
                return
            guard = bool(self.constants[condition].reshape(-1)[0])
            state = values_out[: len(state)]
            for index, (all_of, row) in enumerate(zip(scans, values_out[len(state) :], strict=True)):
                all_of.append(self._node("Unsqueeze", [row, self._zero(scope)], f"{scope}{index}/row"))
        outputs = list(proto.output)
        self._return(state, outputs)
        for all_of, outer in zip(scans, outputs[len(state) :], strict=False):
            if outer and not all_of:
                raise self._refuse(proto, f"no step is made, so that {outer} holds no element")
            if outer:
                self._add(helper.make_node("Concat", all_of, [outer], axis=0))

    def _scan(self, proto: Any, names: Names) -> None:
        """Unroll a Scan: each step takes a slice of the scanned inputs, and returns the state and a slice of each
        output."""
        attributes = attributes_of(proto)
        body, scanned = attributes["body"], int(attributes["num_scan_inputs"])
        if self._version < 9:
            raise self._refuse(proto, "Scan of opset 8 is not supported: export the model for opset 9 or newer")
        count = len(proto.input) - scanned
        state, scanned_inputs, prefix = list(proto.input[:count]), list(proto.input[count:]), self._prefix(proto)
        axes = self._placed(attributes, "scan_input_axes", scanned)
        unknown = [name for name in scanned_inputs if name not in self.info]
        if unknown:
            raise self._refuse(proto, f"the shape of {unknown[0]} is not known before the run: give --shape")
        if self._scan_at_once(proto, body, names, attributes):
            return
        steps = self.info[scanned_inputs[0]].shape[axes[0]]
        if not 0 < steps <= MAX_STEPS:
            raise self._refuse(proto, f"{steps} steps: must be 1..{MAX_STEPS}: bind a smaller dimension with --shape")
        backwards = self._placed(attributes, "scan_input_directions", scanned)
        step_outputs: list[list[str]] = []
        for step in range(steps):
            scope = f"{prefix}{step}/"
            inside = dict(names) | {inner.name: name for inner, name in zip(body.input, state, strict=False)}
            for inner, name, axis, backward in zip(body.input[count:], scanned_inputs, axes, backwards, strict=True):
                inside[inner.name] = scope + inner.name
                at = self._constant_of(f"{scope}{inner.name}/at", steps - 1 - step if backward else step)
                self._add(helper.make_node("Gather", [name, at], [inside[inner.name]], axis=axis))
            results = self._inline(body, scope, inside)
            state = results[:count]
            step_outputs.append(
                [self._node("Identity", [name], f"{scope}{index}/left") for index, name in enumerate(results[count:])]
            )
        self._return(state, proto.output)
        rows = len(step_outputs[0])
        orders = self._placed(attributes, "scan_output_directions", rows)
        for index, axis in enumerate(self._placed(attributes, "scan_output_axes", rows)):
            outer, slices = proto.output[count + index], [step_output[index] for step_output in step_outputs]
            if outer:
                self._stack(slices[::-1] if orders[index] else slices, outer, axis, prefix)

    def _scan_at_once(self, proto: Any, body: Any, names: Names, attributes: Mapping[str, Any]) -> bool:
        """Add a forward Scan over rows as a single step on whole tensors. Return False if that is not possible."""
        if any(any(value) for name, value in attributes.items() if name.startswith("scan_")):
            return False
        count = len(proto.input) - int(attributes["num_scan_inputs"])
        inside = dict(names) | {inner.name: name for inner, name in zip(body.input, proto.input, strict=True)}
        scan = WholeScan(self._version, self.info, self.constants, inside, self._prefix(proto))
        if not scan.build(body, proto.input[count:], count, proto.output):
            return False
        for node in scan.nodes:
            self._add(node)
        return True

    @staticmethod
    def _placed(attributes: Mapping[str, Any], name: str, count: int) -> list[int]:
        """Return a list attribute of a Scan, by default zeros."""
        return list(attributes.get(name) or [0] * count)

    def _stack(self, slices: Sequence[str], outer: str, axis: int, prefix: str) -> None:
        place = self._constant_of(f"{prefix}{outer}/axis", [axis])
        rows = [self._node("Unsqueeze", [name, place], f"{name}/row") for name in slices]
        self._add(helper.make_node("Concat", rows, [outer], axis=axis))

    def _trips(self, inputs: Sequence[str]) -> tuple[int | None, bool]:
        """Return (number of steps or None, whether the first step runs)."""
        steps = int(self.constants[inputs[0]].reshape(-1)[0]) if inputs[0] else None
        return steps, not inputs[1] or bool(self.constants[inputs[1]].reshape(-1)[0])

    def _open_loop(self, proto: Any, body: Any, names: Names) -> None:
        """Unroll a Loop with an open number of steps to its maximum. After each step, a choice keeps the old state if
        the step does not run. Outputs other than the state are rows with an open count.

        A step that always runs needs no choice, so it may change the shape of the state. A state value that is constant
        after a step is passed to the next step unconditionally, because that step's results are used only if the
        previous step ran: counters stay constant in the body.
        """
        inputs, prefix = list(proto.input), self._prefix(proto)
        max_steps = self._max_steps(proto, inputs)
        limit = inputs[0] if inputs[0] and inputs[0] not in self.constants else ""
        state, guard = inputs[2:], self._flag(f"{prefix}going", inputs[1])
        count = self._constant_of(f"{prefix}count", [0])
        scans: list[list[str]] = [[] for _ in body.output[1 + len(state) :]]
        next_state, second = state, 0
        for step in range(max_steps):
            scope = f"{prefix}{step}/"
            guard = self._below(guard, step, limit, scope)
            certain = guard in self.constants and bool(self.constants[guard])
            condition, *outputs = self._inline(body, scope, self._inside(body, step, scope, names, next_state))
            for old, new in zip(state, outputs, strict=False):
                if not certain and (self.info.get(old) is None or self.info.get(old) != self.info.get(new)):
                    raise self._refuse(
                        proto, f"a step changes the shape of {old}, so that the number of steps must be known before "
                        f"the run{self._advice(inputs[0] or inputs[1] or condition)}"
                    )  # fmt: skip
            for index, (all_of, row) in enumerate(zip(scans, outputs[len(state) :], strict=True)):
                all_of.append(self._row(guard, row, f"{scope}{index}/"))
            state = [
                new if certain else self._node("Where", [guard, new, old], f"{scope}{index}/state")
                for index, (old, new) in enumerate(zip(state, outputs, strict=False))
            ]
            next_state = [new if new in self.constants else select for select, new in zip(state, outputs, strict=False)]
            counts = self._node("Cast", [guard], f"{scope}counts", to=onnx.TensorProto.INT64)
            count = self._node("Add", [count, counts], f"{scope}count")
            guard = self._node("And", [guard, self._flag(f"{scope}condition", condition)], f"{scope}going")
            if step == 1:
                self._check_size(proto, max_steps, len(self._nodes) - second)
            second = len(self._nodes)
        self._return(state, proto.output)
        for all_of, outer in zip(scans, list(proto.output)[len(state) :], strict=False):
            if outer:
                self._add(helper.make_node("Concat", all_of, [outer], axis=0))
                self._begin(outer, 0, count)
        if node_name(proto) in self._steps:
            guard = self._below(guard, max_steps, limit, f"{prefix}behind/")
            flag = self._node("Cast", [guard], f"{prefix}behind/number", to=onnx.TensorProto.INT64)
            single = self._constant_of(f"{prefix}behind/one", [1])
            self._add_output(self._node("Reshape", [flag, single], f"{node_name(proto)}{UNFINISHED}"))

    def _check_size(self, proto: Any, max_steps: int, step_nodes: int) -> None:
        """Raise ModelError if the unrolled steps have too many nodes; the nodes of one more step may follow the
        Loop."""
        fit = (MAX_NODES - len(self._nodes)) // step_nodes + 1
        if max_steps > fit + 1:
            raise self._refuse(
                proto, f"up to {max_steps} steps of {step_nodes} nodes, as the run decides: more than {MAX_NODES} "
                f"nodes; say how many steps there are at most, 1..{fit}: --shape {node_name(proto)}=N"
            )  # fmt: skip

    def _max_steps(self, proto: Any, inputs: Sequence[str]) -> int:
        """Return the maximum number of steps."""
        bound = self._bound(inputs[0]) if inputs[0] else None
        bound = MAX_STEPS + 1 if bound is None else bound
        max_steps = min(self._steps.get(node_name(proto), bound), bound)
        if not 0 < max_steps <= MAX_STEPS:
            name = inputs[0] if inputs[0] not in self.constants else inputs[1] or inputs[0]
            raise self._refuse(
                proto, f"the run decides its number of steps{self._advice(name)}; or say how many there are at most, "
                f"1..{MAX_STEPS}: --shape {node_name(proto)}=N"
            )  # fmt: skip
        return max_steps

    def _below(self, guard: str, step: int, limit: str, prefix: str) -> str:
        """Return the condition of a step: every earlier step continued, and the limit is not reached."""
        if not limit:
            return guard
        at = self._constant_of(f"{prefix}step", np.array(step, np.int64))
        less = self._node("Less", [at, self._flag(f"{prefix}limit", limit)], f"{prefix}less")
        return self._node("And", [guard, less], f"{prefix}made")

    def _flag(self, name: str, source: str) -> str:
        """Return a one-element tensor as a scalar; true without a source."""
        if not source:
            return self._constant_of(name, True)
        return self._node("Reshape", [source, self._constant_of(f"{name}/shape", np.zeros(0, np.int64))], name)

    def _row(self, guard: str, row: str, prefix: str) -> str:
        """Return the row of a step, or -1 if the step does not run."""
        info = self.info.get(row)
        fill = self._constant_of(f"{prefix}fill", np.array(-1).astype(np.float32 if info is None else info.dtype))
        selected = self._node("Where", [guard, row, fill], f"{prefix}chosen")
        return self._node("Unsqueeze", [selected, self._zero(prefix)], f"{prefix}row")

    def _add_output(self, name: str) -> None:
        """Add a one-element tensor to the outputs of the model."""
        self._graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1]))

    def _zero(self, prefix: str) -> str:
        return self._constant_of(f"{prefix}axis", [0])

    def _inline(self, graph: Any, prefix: str, names: dict[str, str]) -> list[str]:
        """Add the nodes of a subgraph to the graph, and return the names of its outputs there."""
        for tensor in graph.initializer:
            names[tensor.name] = self._shared.tensor(tensor, prefix + tensor.name)
            copied = deepcopy(tensor)
            copied.name = names[tensor.name]
            if copied.name not in self.info:
                self._graph.initializer.append(copied)
                self._initializer(copied)
        for node in graph.node:
            key, before = self._shared.key(node, names), len(self._nodes)
            if results := self._shared.find(key):
                names.update(zip(node.output, results, strict=True))
                continue
            names.update((name, prefix + name) for name in node.output if name)
            named = deepcopy(node)
            named.name = prefix + node.name if node.name else ""
            self._visit(named, names)
            self._shared.add(key, [names.get(name, name) for name in node.output], before)
        return [names.get(value.name, value.name) for value in graph.output]

    def _prefix(self, proto: Any) -> str:
        """Return a unique prefix for the names of a subgraph."""
        base = proto.name or proto.output[0]
        prefix = next(text for count in itertools.count() if (text := f"{base}{count or ''}/") not in self._prefixes)
        self._prefixes.add(prefix)
        return prefix

    def _advice(self, name: str) -> str:
        """Return a hint that names the model inputs, without weights, on which a value depends."""
        inputs, worklist, visited = set[str](), [name], set[str]()
        while worklist:
            tensor = worklist.pop()
            if tensor in visited or tensor in self._external:
                continue
            visited.add(tensor)
            if tensor in self._inputs:
                inputs.add(tensor)
            elif tensor in self._producers:
                worklist += self._producers[tensor].input
        if not inputs:
            return ""
        if any(name not in self.info or np.prod(self.info[name].shape) != 1 for name in inputs):
            return f"; it depends on {', '.join(sorted(inputs))}"
        return f": fix its value, {' '.join(f'--constant {name}=N' for name in sorted(inputs))}"


def _branch(proto: Any, then: bool) -> Any:
    """Return the subgraph of an If for a condition."""
    return next(
        attribute.g for attribute in proto.attribute if attribute.name == ("then_branch" if then else "else_branch")
    )
