"""Text of a module, parsed by xDSL with the location of every operation. Errors are one line with a location."""

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
"""Maximum size of a dense<...> constant, elements."""
LONGEST = 300
"""Maximum length of a parser message, characters."""


MAX_DIMENSIONS = 64
"""Maximum number of dimensions of a type: xDSL parses them in quadratic time."""
_DIMENSIONS = re.compile(rf"(?<![\d?x])(?:(?:\d++|\?)x){{{MAX_DIMENSIONS + 1}}}")
_ENUMERATOR = re.compile(r"[A-Z][A-Z0-9_]+")
_NAME = re.compile(r"[\w$]+(?:\.[\w$]+)+\s*$")


class _Lexer(MLIRLexer):
    """Lexer that detects an unterminated string in linear time."""

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')


class _MlirParser(Parser):
    """Parser that records where each operation begins."""

    begins: dict[Operation, int]

    def __init__(self, context: Context, text: str, name: str) -> None:
        super().__init__(context, "", name)
        self._parser_state = ParserState(_Lexer(Input(text, name)))

    def _parse_dense_literal_type(self, *arguments: Any) -> Any:
        """Refuse a type with too many equal elements before xDSL expands them."""
        begins = self._current_token.span.start
        kind = super()._parse_dense_literal_type(*arguments)
        if math.prod(kind.get_shape()) > MAX_ELEMENTS:
            self.raise_error(f"a constant has at most {MAX_ELEMENTS} elements", begins)
        return kind

    def parse_optional_location(self) -> None:
        """Skip a location in the exporter's source, with names defined at the end of the file: messages use locations
        in this file."""
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
        """Parse also locations, and enumeration values as tosa writes them: rounding_mode = DOUBLE_ROUND."""
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
    """Parsed module file."""

    def __init__(self, text: str, name: str) -> None:
        """Raise ModelError with the location of a syntax error."""
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
        except Exception as error:  # xDSL raises many classes for invalid text
            self._fail(parser.pos, str(error) or type(error).__name__, _REMEDY)

    def _fail(self, at: int, message: str, remedy: str = "") -> NoReturn:
        line = next((row.strip() for row in message.splitlines() if row.strip()), "syntax error")
        raise ModelError(f"{self._at(at)}: {line[:LONGEST].rstrip('.!')}{remedy}")

    def _at(self, offset: int) -> str:
        line = bisect_right(self._lines, offset)
        return f"{self.name}:{line}:{offset - self._lines[line - 1] + 1}"

    def place(self, op: Operation) -> str:
        """Return file:line:column of an operation, or of its parent if it is not in the text."""
        while op not in self._begins:
            parent = op.parent_op()
            if parent is None:
                return self.name
            op = parent
        return self._at(self._begins[op])

    def line(self, op: Operation) -> int:
        """Return the line of an operation; 0 if it is not in the text."""
        return bisect_right(self._lines, self._begins[op]) if op in self._begins else 0

    def refuse(self, op: Operation, reason: str) -> NoReturn:
        """Raise ModelError: the operation, and the unsupported part of it."""
        raise ModelError(f"{self.place(op)}: {op_name(op)}: {reason}")


_REMEDY = ": not read in this form: if mlir-opt accepts the module, give what it prints with --mlir-print-op-generic"
"""Remedy for parse errors: only mlir-opt can distinguish an invalid module from unsupported syntax."""


def _reason(text: str, error: ParseError) -> tuple[str, str]:
    """Return (message, remedy) of an error; for an unknown operation, the message contains its name."""
    name = _NAME.search(text[: error.span.start])
    if "builtin.unregistered" in error.msg and name is not None:
        return f"{name[0].strip()}: this operation is not supported", ": lower it to those of `pyv-npu docs mlir`"
    return error.msg, _REMEDY


def op_name(op: Operation) -> str:
    """Return the name of an operation, registered or not."""
    name = getattr(op, "op_name", None)
    return str(name.data) if name is not None else op.name


MAX_MODULE = 1 << 30
"""Maximum size of a module, bytes; constants are text."""


def read(path: Path) -> MlirSource:
    """Return the module in a file. ModelError as `MlirSource`."""
    try:
        check_input(path, MAX_MODULE)
        return MlirSource(path.read_bytes().decode("utf-8"), str(path))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}: give the path of an MLIR module") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: no text: mlir-opt writes bytecode as text") from None
