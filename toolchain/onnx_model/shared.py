"""What subgraphs have in common: tensors and nodes that are equal in several steps of a loop are there once."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import NodeProto, TensorProto

from toolchain.onnx_model.sequences import OPERATORS as SEQUENCES
from toolchain.onnx_nodes.view import subgraphs

_EACH_OF_ITS_OWN = frozenset((
    *SEQUENCES, "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
))  # fmt: skip
"""Operators that draw numbers, or make a list of tensors."""


class Shared:
    """The tensors and nodes of subgraphs so far. `nodes`: the list that they are added to; some may leave it again."""

    def __init__(self, nodes: list[Any]) -> None:
        self._nodes = nodes
        self._tensors: dict[bytes, str] = {}
        self._made: dict[bytes | None, tuple[list[str], int, Any]] = {}
        """What the outputs are called, how many nodes there were with it, and the last of them, by `key`."""

    def tensor(self, tensor: Any, name: str) -> str:
        """The name of an equal tensor before it, or its own."""
        plain = TensorProto.FromString(tensor.SerializeToString())
        plain.ClearField("name")
        return self._tensors.setdefault(hashlib.sha256(plain.SerializeToString()).digest(), name)

    @staticmethod
    def key(node: Any, names: Mapping[str, str]) -> bytes | None:
        """Equal for nodes of subgraphs that make the same; None: this one stays. `names`: those of its inputs."""
        if node.op_type in _EACH_OF_ITS_OWN or any(graph.output for graph in subgraphs(node)):
            return None  # a subgraph reads tensors of the step by names that are no inputs
        plain = NodeProto.FromString(node.SerializeToString())
        plain.ClearField("name")
        plain.ClearField("doc_string")
        plain.input[:] = [names.get(name, name) for name in node.input]
        plain.output[:] = ["x" if name else "" for name in node.output]
        return hashlib.sha256(plain.SerializeToString()).digest()

    def find(self, key: bytes | None) -> Sequence[str] | None:
        """What the outputs of an equal node are called."""
        if key not in self._made:
            return None
        outputs, count, last = self._made[key]
        return outputs if count <= len(self._nodes) and self._nodes[count - 1] is last else None

    def add(self, key: bytes | None, outputs: list[str], before: int) -> None:
        """A node that is among the nodes now, of which there were so many before it."""
        if key is not None and len(self._nodes) > before:
            self._made[key] = outputs, len(self._nodes), self._nodes[-1]
