"""Configuration key: its type, its rule, and the check of a value against both."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from pyv_npu.errors import BadInputError, did_you_mean
from pyv_npu.text import PREFIXES, integer

Value = Any
"""Value of a key: int, bool, str or None; a tuple of them; or a mapping of names to int."""


class KeyRuleError(BadInputError):
    """Violation of a key's rule. The caller adds the origin of the value to the message."""


class KeyShape(Enum):
    SCALAR = auto()
    LIST = auto()
    TABLE = auto()


@dataclass(frozen=True)
class KeyForm:
    """Form of a key's values, from the annotation of its field."""

    scalar: type
    """Type of scalars: int, bool or str."""
    shape: KeyShape = KeyShape.SCALAR
    optional: bool = False
    """Whether `none` is a value, too."""
    count: int | None = None
    """Number of items of a list; None: any number of distinct items."""

    @classmethod
    @cache  # many keys have the same annotation
    def of(cls, annotation: Any) -> "KeyForm":
        """Return the form of `X`, `X | None`, `tuple[X, ...]`, `tuple[X, X]` or `Mapping[str, X]`."""
        origin, parts = get_origin(annotation), get_args(annotation)
        if NoneType in parts:
            return cls(next(part for part in parts if part is not NoneType), optional=True)
        if origin is tuple:
            return cls(parts[0], KeyShape.LIST, count=None if parts[-1] is ... else len(parts))
        return cls(annotation) if origin is None else cls(parts[1], KeyShape.TABLE)


class Key(NamedTuple):
    """Leaf of the tree, by its dotted path."""

    path: str
    form: KeyForm
    default: Value
    rule: Mapping[str, Any]
    """Metadata of the field (see `tree`)."""

    @property
    def unit(self) -> str:
        return str(self.rule.get("unit", ""))

    def item(self, path: str) -> str:
        """Return the name, which may have dots, of the item of this table at a path; empty for any other path."""
        table = f"{self.path}."
        return path.removeprefix(table) if self.form.shape is KeyShape.TABLE and path.startswith(table) else ""

    def convert(self, raw: object) -> Value:
        """Convert `raw` (from YAML, a command line or Python) to a value of this key; KeyRuleError for an invalid
        value."""
        if self.form.optional and (raw is None or (isinstance(raw, str) and raw.lower() == "none")):
            return None
        if self.form.shape is KeyShape.LIST:
            return self._list(raw)
        if self.form.shape is KeyShape.TABLE:
            return self._table(raw)
        return self._scalar(raw, raw)

    def show(self, value: object) -> str:
        """Format a value as in a YAML file."""
        if isinstance(value, bool) or value is None:
            return {True: "true", False: "false", None: "none"}[value]
        return f"{value:#x}" if isinstance(value, int) and self.unit == "address" else str(value)

    def _list(self, raw: object) -> Value:
        items = raw
        if isinstance(raw, str):
            items = [item.strip() for item in raw.strip("[] ").split(",") if item.strip()]
        if not isinstance(items, list | tuple) or self.form.count not in (None, len(items)):
            raise self._error(raw, self._words())
        values = tuple(self._scalar(item, raw) for item in items)
        if self.form.count is None and len(set(values)) != len(values):
            raise self._error(raw, "must not name an entry twice")
        return values

    def _table(self, raw: object) -> Value:
        if not isinstance(raw, Mapping) or not all(isinstance(name, str) for name in raw):
            raise self._error(raw, self._words())
        return {
            name: Key(f"{self.path}.{name}", KeyForm(self.form.scalar), None, self.rule).convert(item)
            for name, item in raw.items()
        }

    def _scalar(self, item: object, full_value: object) -> Value:
        """Convert `item` to a scalar; messages show `full_value`."""
        kind, value = self.form.scalar, item
        if isinstance(item, str):
            if kind is bool:
                value = {"true": True, "false": False, "on": True, "off": False}.get(item.lower(), item)
            elif kind is int:
                value = self._integer(item)
            else:
                value = self.rule.get("aliases", {}).get(item, item)
        elif isinstance(item, float) and kind is int and item.is_integer():
            value = int(item)  # 25.6e+9 of a YAML file
        if type(value) is not kind:
            raise self._error(full_value, self._words())
        if "choices" in self.rule and value not in self.rule["choices"]:
            hint = did_you_mean(str(value), self.rule["choices"])
            raise self._error(full_value, f"must be one of {', '.join(self.rule['choices'])}{hint}")
        if isinstance(value, int) and not self._is_in_range(value):
            raise self._error(full_value, self._words())
        return value

    def _integer(self, text: str) -> int | str:
        """Parse an integer, with or without a prefixed unit; return other text unchanged."""
        try:
            return integer(text, self.unit)
        except ValueError:
            return text

    def _is_in_range(self, value: int) -> bool:
        rule = self.rule
        return bool(
            rule.get("min", value) <= value <= rule.get("max", value)
            and value % rule.get("multiple_of", 1) == 0
            and (not rule.get("power_of_two") or value & (value - 1) == 0)
        )

    def _words(self) -> str:
        """Describe the rule, with the default or an example as the remedy."""
        integers = self.form.scalar is int
        if self.form.shape is KeyShape.LIST:
            count = "" if self.form.count is None else f"{self.form.count} "
            kind = f"integers{self._range(' each')}" if integers else "words"
            return f"must be a list of {count}{kind}, for example [{', '.join(map(str, self.default))}]"
        if self.form.shape is KeyShape.TABLE:
            items = f"integers{self._range()}" if integers else "words"
            return f"must be a table of names and {items}; set an item by its name, {self.path}.NAME"
        if "choices" in self.rule:
            return f"must be one of {', '.join(self.rule['choices'])}"
        suffix = " or none" if self.form.optional else ""
        if integers:
            default = "" if self.default is None else f" (default {self.show(self.default)})"
            units = f", plain or in {', '.join(PREFIXES[self.unit])}," if self.unit in PREFIXES else ""
            return f"must be an integer{units}{self._range()}{suffix}{default}"
        return f"must be {'true or false' if self.form.scalar is bool else 'a word'}{suffix}"

    def _range(self, suffix: str = "") -> str:
        rule, text = self.rule, ""
        low, high = rule.get("min"), rule.get("max")
        if low is not None and high is not None:
            text = f" from {self.show(low)} to {self.show(high)}"
        elif low is not None:
            text = f" of at least {self.show(low)}"
        if rule.get("power_of_two"):
            text += ", a power of two"
        if rule.get("multiple_of", 1) > 1:
            text += f", a multiple of {self.show(rule['multiple_of'])}"
        return text + suffix if text else ""

    def _error(self, raw: object, rule: str) -> KeyRuleError:
        return KeyRuleError(f"{self.path} = {self.show(raw)}: {rule}")
