"""YAML files with the line of every key; repeated keys and other faults that PyYAML accepts are errors.

A QConfig is one such file (docs/quantization.md; keys: `toolchain.quantize.qconfig`).
"""

import re
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.config.package_data import find_file
from pyv_npu.errors import BadInputError

if TYPE_CHECKING:
    from pathlib import Path

    from toolchain.quantize.qconfig import QConfig

_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loader in C, if PyYAML was built with libyaml."""


class _LOADER(_SAFE_LOADER):
    """Loader that reports the line of a value invalid for its tag, such as `!!bool maybe` or the date 2024-99-99."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:
            kind, reason = node.tag.rpartition(":")[2], str(error) or type(error).__name__
            text = f"{node.value!r} cannot be a {kind} ({reason}); quote the value"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from None


MOST_DEPTH, MOST_NODES = 64, 1 << 20
"""Maximum depth and number of nodes of a document with its aliases expanded. Deeper documents overflow the stack of
PyYAML's parser in C; a few lines of aliases may expand to more nodes than fit in memory."""


class Entry(NamedTuple):
    """Value of a file."""

    path: str
    """Dotted path."""
    value: Any
    line: int


def read_entries(path: "str | Path", sections: Container[str]) -> list[Entry]:
    """Read the values of a YAML file; mappings at a path of `sections` are expanded, and `a.b: 1` is `a: {b: 1}`.

    BadInputError, with file and line: not readable, not YAML, not a mapping, a repeated key.
    """
    try:
        check_input(path, MAX_TEXT)
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadInputError(f"{path}: {reason}; give the name of a YAML file") from None
    check_bounds(text, str(path))
    loader = _LOADER(text)
    try:
        root = loader.get_single_node()
        entries = [] if root is None else list(_walk(path, loader, root, "", sections))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{path}:{mark.line + 1}" if mark else str(path)
        raise BadInputError(f"{location}: not YAML: {error.problem or error.context}; correct this line") from None
    except yaml.YAMLError as error:
        raise BadInputError(f"{path}: not YAML: {str(error).splitlines()[0]}; correct the file") from None
    finally:
        loader.dispose()
    lines: dict[str, int] = {}
    for entry in entries:
        if entry.path in lines:
            raise BadInputError(
                f"{path}:{entry.line}: {entry.path}: given twice, first in line {lines[entry.path]}; keep one"
            )
        lines[entry.path] = entry.line
    return entries


def read_yaml(text: str, name: str) -> Any:
    """Parse a document. yaml.YAMLError or ValueError for invalid YAML; BadInputError as `check_bounds`."""
    check_bounds(text, name)
    return yaml.load(text, _LOADER)


def check_bounds(text: str, name: str) -> None:
    """Raise BadInputError for a document that is nested too deeply or too large; `name`: of the document, for messages.

    A document without anchors, with short lines and few brackets is within the limits and is not parsed here.
    """
    deepest = text.count("[") + text.count("{") + max(map(len, text.split("\n")))
    if "&" not in text and deepest <= MOST_DEPTH:
        return
    sizes: dict[str, int] = {}
    collections: list[tuple[str | None, int]] = []
    """Stack of open collections: (anchor, nodes before it)."""
    count = 0

    def too_deep(line: int) -> BadInputError:
        return BadInputError(f"{name}:{line}: nested more than {MOST_DEPTH} deep; correct this line")

    try:
        for event in yaml.parse(text, _LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                collections.append((event.anchor, count))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, previous = collections.pop()
                sizes |= {} if anchor is None else {anchor: count - previous}
            elif isinstance(event, yaml.AliasEvent):
                count += sizes.get(str(event.anchor), 0)
            count += isinstance(event, yaml.NodeEvent)
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            if len(collections) > MOST_DEPTH:
                raise too_deep(line)
            if count > MOST_NODES:
                raise BadInputError(
                    f"{name}:{line}: more than {MOST_NODES} values with all that aliases repeat; drop some"
                )
    except yaml.MarkedYAMLError as error:  # PyYAML 6.0.4 and newer check the depth, too, before the first event
        if "nesting depth" in (error.problem or "") and error.problem_mark is not None:
            raise too_deep(error.problem_mark.line + 1) from None
    except yaml.YAMLError:
        pass  # the caller's conversion to values reports the error


def _walk(path: "str | Path", loader: Any, node: "yaml.Node", prefix: str, sections: Container[str]) -> Iterator[Entry]:
    if not isinstance(node, yaml.MappingNode):
        name = prefix.rstrip(".") or "the file"
        raise BadInputError(f"{path}:{node.start_mark.line + 1}: {name}: must be a table of keys and values")
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise BadInputError(f"{path}:{line}: {prefix}{key}: a key must be a word; quote it or correct it")
        name = prefix + key
        if name in sections:
            if not (isinstance(value_node, yaml.ScalarNode) and value_node.value == ""):  # an empty section is valid
                yield from _walk(path, loader, value_node, name + ".", sections)
        else:
            yield Entry(name, loader.construct_object(value_node, deep=True), line)


_SECTION = r"bitwidths|packing|vq|alignment|kv|spm|override|(override\.)?layer_\d+(\.(?!(kv|weight|activation)$)\w+)?"


class _Sections:
    """Set of the names of sections in a QConfig."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(re.fullmatch(_SECTION, name))


def load_qconfig(path: "str | Path") -> "QConfig":
    """Read a file, or a shipped file by its name. BadInputError, with the line: no YAML, an unknown key, an invalid
    value."""
    from toolchain.quantize.qconfig import QConfigError, read_qconfig

    path = find_file(path, "qconfigs")
    entries = {entry.path: entry for entry in read_entries(path, _Sections())}
    try:
        return read_qconfig({name: entry.value for name, entry in entries.items()})
    except QConfigError as error:
        raise BadInputError(f"{path}:{entries[error.key].line}: {error}") from None
