"""The text of a module, parsed by xDSL, with the place of every operation. Errors are one line with a place."""

import math
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any, NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnknownLoc
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser, ParserState
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind

from pyv_native.files import check_input
from toolchain.errors import ModelError
from toolchain.mlir.text.foreign import context

SUFFIX = ".mlir"
MAX_ELEMENTS = 1 << 28
"""Of a constant that is written as dense<...>."""
LONGEST = 300
"""Characters of what the parser says."""


MAX_DIMENSIONS = 64
"""Of a type: xDSL's time to read them grows with their square."""
_DIMENSIONS = re.compile(rf"(?<![\d?x])(?:(?:\d++|\?)x){{{MAX_DIMENSIONS + 1}}}")
_ENUMERATOR = re.compile(r"[A-Z][A-Z0-9_]+")
_NAME = re.compile(r"[\w$]+(?:\.[\w$]+)+\s*$")


class _Lexer(MLIRLexer):
    """A string without an end is found in time that grows with its length, not with a power of two."""

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')


class _MlirParser(Parser):
    """Notes where each operation begins."""

    begins: dict[Operation, int]

    def __init__(self, context: Context, text: str, name: str) -> None:
        super().__init__(context, "", name)
        self._parser_state = ParserState(_Lexer(Input(text, name)))

    def _parse_dense_literal_type(self, *arguments: Any) -> Any:
        """Refuse a type that holds too many equal elements before xDSL writes them out."""
        begins = self._current_token.span.start
        kind = super()._parse_dense_literal_type(*arguments)
        if math.prod(kind.get_shape()) > MAX_ELEMENTS:
            self.raise_error(f"a constant has at most {MAX_ELEMENTS} elements", begins)
        return kind

    def parse_optional_location(self) -> None:
        """Places in the source of an exporter are skipped, with names that stand at the end of the file: messages name
        places of this file."""
        if self.parse_optional_characters("loc"):
            self._skip_parentheses()

    def _skip_parentheses(self) -> None:
        self.parse_punctuation("(")
        depth = 1
        while depth:
            token = self._consume_token()
            if token.kind is MLIRTokenKind.EOF:
                self.raise_error("expected )")
            depth += {"(": 1, ")": -1}.get(token.text, 0)

    def parse_optional_attribute(self) -> Attribute | None:
        """Parse also places, and values of enumerations as tosa writes them: rounding_mode = DOUBLE_ROUND."""
        token = self._current_token
        if token.kind is MLIRTokenKind.BARE_IDENT and token.text == "loc":
            self.parse_optional_location()
            return UnknownLoc()
        if token.kind is MLIRTokenKind.BARE_IDENT and _ENUMERATOR.fullmatch(token.text):
            return StringAttr(self.parse_identifier())
        return super().parse_optional_attribute()

    def parse_operation(self) -> Operation:
        begins = self._current_token.span.start
        op = super().parse_operation()
        self.begins[op] = begins
        return op


class MlirSource:
    """A parsed file."""

    def __init__(self, text: str, name: str) -> None:
        """ModelError: what is no MLIR, and where."""
        self.name = name
        self._lines = [0, *(at + 1 for at, letter in enumerate(text) if letter == "\n")]
        self.context = context()
        self._begins: dict[Operation, int] = {}
        if match := _DIMENSIONS.search(text):
            self._fail(match.start(), f"a type has at most {MAX_DIMENSIONS} dimensions: use fewer")
        parser = _MlirParser(self.context, "", name)
        try:
            parser = _MlirParser(self.context, text, name)
            parser.begins = self._begins
            self.module: ModuleOp = parser.parse_module()
        except ParseError as error:
            self._fail(error.span.start, *_reason(text, error))
        except RecursionError:
            self._fail(parser.pos, "nested too deeply", _REMEDY)
        except Exception as error:  # what xDSL raises of broken text has many classes
            self._fail(parser.pos, str(error) or type(error).__name__, _REMEDY)

    def _fail(self, at: int, message: str, remedy: str = "") -> NoReturn:
        line = next((row.strip() for row in message.splitlines() if row.strip()), "syntax error")
        raise ModelError(f"{self._at(at)}: {line[:LONGEST].rstrip('.!')}{remedy}")

    def _at(self, offset: int) -> str:
        line = bisect_right(self._lines, offset)
        return f"{self.name}:{line}:{offset - self._lines[line - 1] + 1}"

    def place(self, op: Operation) -> str:
        """Return file:line:column of an operation; of the operation around it where it is not in the text."""
        while op not in self._begins:
            parent = op.parent_op()
            if parent is None:
                return self.name
            op = parent
        return self._at(self._begins[op])

    def line(self, op: Operation) -> int:
        """Return the line of an operation; 0: it is not in the text."""
        return bisect_right(self._lines, self._begins[op]) if op in self._begins else 0

    def refuse(self, op: Operation, reason: str) -> NoReturn:
        """ModelError: this operation, and what of it is not supported."""
        raise ModelError(f"{self.place(op)}: {op_name(op)}: {reason}")


_REMEDY = ": not read in this form: if mlir-opt accepts the module, give what it prints with --mlir-print-op-generic"
"""Whether the module is wrong, or this parser knows less than MLIR's, only mlir-opt can tell."""


def _reason(text: str, error: ParseError) -> tuple[str, str]:
    """Return reason and remedy of an error; for an unknown operation, its name."""
    name = _NAME.search(text[: error.span.start])
    if "builtin.unregistered" in error.msg and name is not None:
        return f"{name[0].strip()}: this operation is not supported", ": lower it to those of `pyv-npu docs mlir`"
    return error.msg, _REMEDY


def op_name(op: Operation) -> str:
    """Return the name of an operation, also of an operation that is not registered."""
    name = getattr(op, "op_name", None)
    return str(name.data) if name is not None else op.name


MAX_MODULE = 1 << 30
"""Bytes of a module: its constants are text."""


def read(path: Path) -> MlirSource:
    """Return the module in a file. ModelError as `MlirSource`."""
    try:
        check_input(path, MAX_MODULE)
        return MlirSource(path.read_bytes().decode("utf-8"), str(path))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}: give the path of an MLIR module") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: no text: mlir-opt writes bytecode as text") from None
