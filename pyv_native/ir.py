"""LLVM IR as text: one function made of blocks with parameters, which become phi nodes.

Text, because building it takes a fraction of the time that objects for each instruction would.
"""

from collections.abc import Iterable, Sequence

INLINE = "alwaysinline"
"""Attribute of a function that is inlined into all callers and then removed."""
Target = tuple[str, Sequence[str]]
"""A block's label, and an argument for each of its parameters."""


class Ir:
    """Builder of a function, block by block. A jump may precede the creation of its target."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._parameters: dict[str, tuple[str, ...]] = {}
        self._arguments: dict[str, list[tuple[str, Sequence[str]]]] = {}
        self._current: list[str] = []
        self._label = ""
        self._names = 0

    def block(self, label: str, *types: str) -> tuple[str, ...]:
        """Begin a block with parameters of these types; return their names."""
        self._label = label
        self._current = self._lines[label] = []
        self._parameters[label] = types
        return tuple(f"%{label}.{index}" for index in range(len(types)))

    def new_label(self) -> str:
        """Return an unused label."""
        self._names += 1
        return f"l{self._names}"

    def value(self, text: str) -> str:
        """Append an instruction; return the name of its value."""
        self._names += 1
        name = f"%v{self._names}"
        self._current.append(f"{name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction that has no value."""
        self._current.append(text)

    def resize(self, value: str, ir_type: str, target: str, *, signed: bool = False) -> str:
        """Append the conversion of an integer of LLVM type `ir_type` to the type `target`; return its value."""
        if ir_type == target:
            return value
        if int(target[1:]) < int(ir_type[1:]):
            return self.value(f"trunc {ir_type} {value} to {target}")
        return self.value(f"{'sext' if signed else 'zext'} {ir_type} {value} to {target}")

    def load(self, ir_type: str, pointer: str, offset: int = 0) -> str:
        """Append a load of an LLVM type at `offset` bytes from a pointer; return its value."""
        return self.value(f"load {ir_type}, ptr {self.at(pointer, offset)}, align 1")

    def store(self, ir_type: str, value: str, pointer: str, offset: int = 0) -> None:
        self.do(f"store {ir_type} {value}, ptr {self.at(pointer, offset)}, align 1")

    def at(self, pointer: str, offset: int | str) -> str:
        """Append the addition of `offset` bytes (a constant, or an i64 value) to a pointer; return the sum."""
        return pointer if offset == 0 else self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    # -- the end of a block ------------------------------------------------------------------------------------

    def goto(self, label: str, arguments: Sequence[str] = ()) -> None:
        self._edge(label, arguments)
        self.do(f"br label %{label}")

    def branch(self, condition: str, true_target: Target, false_target: Target) -> None:
        """Branch to `true_target` if the i1 `condition` holds."""
        if true_target[0] == false_target[0]:
            false_target = self._relay(false_target)
        self._edge(*true_target)
        self._edge(*false_target)
        self.do(f"br i1 {condition}, label %{true_target[0]}, label %{false_target[0]}")

    def switch(
        self, ir_type: str, value: str, cases: Iterable[tuple[int, str]], default: Target, *arguments: str
    ) -> None:
        """Branch to the label of the case that equals `value`, with these arguments; labels are distinct."""
        self._edge(*default)
        texts = []
        for case, label in cases:
            self._edge(label, arguments)
            texts.append(f"{ir_type} {case}, label %{label}")
        self.do(f"switch {ir_type} {value}, label %{default[0]} [{' '.join(texts)}]")

    def unless(self, condition: str, target: Target) -> None:
        """Branch to `target` unless the i1 `condition` holds, else continue in a new block."""
        label = self.new_label()
        self.branch(condition, (label, ()), target)
        self.block(label)

    def _edge(self, label: str, arguments: Sequence[str]) -> None:
        self._arguments.setdefault(label, []).append((self._label, arguments))

    def _relay(self, target: Target) -> Target:
        """Insert a block that goes to `target`: two edges between the same blocks could not differ in their
        arguments."""
        relay, label = self.new_label(), target[0]
        self._lines[relay] = [f"br label %{label}"]
        self._parameters[relay] = ()
        self._arguments.setdefault(label, []).append((relay, target[1]))
        return relay, ()

    # -- text --------------------------------------------------------------------------------------------------

    def text(self, signature: str, attributes: str = "nounwind") -> str:
        """Return the function as IR, without unreachable blocks."""
        labels = self._reachable_labels()
        parts = [f"define {signature} {attributes} {{"]
        for label in labels:
            parts.append(f"{label}:")
            edges = [edge for edge in self._arguments.get(label, ()) if edge[0] in labels]
            for index, ir_type in enumerate(self._parameters[label]):
                choices = ", ".join(f"[{arguments[index]}, %{source}]" for source, arguments in edges)
                parts.append(f"%{label}.{index} = phi {ir_type} {choices}")
            parts += self._lines[label]
        parts.append("}\n")
        return "\n".join(parts)

    def _reachable_labels(self) -> dict[str, None]:
        """Return the labels that are reachable from the first block, with that first."""
        successors: dict[str, list[str]] = {}
        for label, edges in self._arguments.items():
            for source, _ in edges:
                successors.setdefault(source, []).append(label)
        labels = {next(iter(self._lines)): None}
        worklist = list(labels)
        while worklist:
            for label in successors.get(worklist.pop(), ()):
                if label not in labels:
                    labels[label] = None
                    worklist.append(label)
        return labels
