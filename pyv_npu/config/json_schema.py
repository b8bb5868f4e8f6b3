"""JSON schema (draft 2020-12) of the configuration, with which editors complete and check YAML files.

The schema accepts everything that the loader accepts. The loader also checks rules that a schema cannot express:
rules between keys (`tree.check_together`), the range of an integer in text, equal entries in different spelling, a
float without fraction, missing files, and repeated keys.
"""

import re
from typing import Any

from pyv_npu.config import presets
from pyv_npu.config.effective import RECORD
from pyv_npu.config.key import Key, KeyShape
from pyv_npu.config.schema import keys_of, sections_of
from pyv_npu.config.tree import Config
from pyv_npu.text import decimal

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PRESET = "preset"
Schema = dict[str, Any]

_INTEGER_TEXT = r"\s*[+-]?(0[xX](_?[0-9a-fA-F])+|0[oO](_?[0-7])+|0[bB](_?[01])+|[1-9](_?[0-9])*|0(_?0)*)\s*"
"""Pattern of texts that Python's `int(text, 0)` accepts."""


def schema() -> Schema:
    """Return the schema of a file for `--config`: nested sections, and `a.b: 1` for `a: {b: 1}` at any depth."""
    keys = keys_of(Config)
    definitions = {path: _key_schema(key) for path, key in keys.items()}
    sections = sorted(sections_of(Config))
    definitions |= {path: {**_section(f"{path}."), "type": ["object", "null"]} for path in sections}
    file = _section("")
    file["properties"][RECORD] = {"description": "what was run, in the run.yaml of a report"}
    named = {"anyOf": [{"enum": list(presets.NAMES)}, {"type": "string", "pattern": r"\.ya?ml$"}]}
    return {
        "$schema": DRAFT,
        "title": "Configuration of PyV-NPU",
        "type": ["object", "null"],
        **file,
        "if": {"type": "object", "required": [RECORD]},
        "else": {"properties": {PRESET: named}},
        "$defs": definitions,
    }


def _section(prefix: str) -> Schema:
    """Return the schema of a section; `prefix` is its path with a dot, or "" for the file."""
    keys = {path: key for path, key in keys_of(Config).items() if path.startswith(prefix)}
    keys_below = [*keys, *(path for path in sorted(sections_of(Config)) if path.startswith(prefix))]
    section: Schema = {
        "properties": {path.removeprefix(prefix): {"$ref": f"#/$defs/{path}"} for path in keys_below},
        "additionalProperties": False,
    }
    tables = {
        f"^{re.escape(path.removeprefix(prefix) + '.')}.+$": _scalar(key)
        for path, key in keys.items()
        if key.form.shape is KeyShape.TABLE
    }
    return {**section, "patternProperties": tables} if tables else section


def _key_schema(key: Key) -> Schema:
    """Return the schema of a key's values, with the description that an editor shows."""
    unit = f" [{key.unit}]" if key.unit else ""
    shown: Schema = {"description": f"{key.rule.get('meaning', '')}{unit}. Source: {key.rule.get('source', '')}"}
    default = key.default
    shown["default"] = list(default) if isinstance(default, tuple) else default
    return {**shown, **_values(key)}


def _values(key: Key) -> Schema:
    if key.form.shape is KeyShape.LIST:
        return _list(key)
    if key.form.shape is KeyShape.TABLE:
        return {"type": "object", "additionalProperties": _scalar(key)}
    if not key.form.optional:
        return _scalar(key)
    return {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[nN][oO][nN][eE]$"}, _scalar(key)]}


def _list(key: Key) -> Schema:
    count = key.form.count
    items: Schema = {"type": "array", "items": _scalar(key)}
    if count is None:
        items["uniqueItems"] = True
    else:
        items |= {"minItems": count, "maxItems": count}
    return {"anyOf": [items, {"type": "string"}]}  # text such as `a, b`, which the schema does not check


def _scalar(key: Key) -> Schema:
    rule, kind = key.rule, key.form.scalar
    if kind is bool:
        text = {"type": "string", "pattern": "^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE]|[oO][nN]|[oO][fF][fF])$"}
        return {"anyOf": [{"type": "boolean"}, text]}
    if kind is str:
        if "choices" in rule:
            return {"enum": [*rule["choices"], *rule.get("aliases", {})]}
        return {"type": "string"}
    return {"anyOf": [_integer(key), {"type": "string", "pattern": f"^({_INTEGER_TEXT}|{decimal(key.unit)})$"}]}


def _integer(key: Key) -> Schema:
    rule = key.rule
    if rule.get("power_of_two"):
        powers = [0, *(1 << bit for bit in range(rule["max"].bit_length()))]
        step = rule.get("multiple_of", 1)
        return {"enum": [power for power in powers if rule["min"] <= power <= rule["max"] and power % step == 0]}
    rule_schema: Schema = {"type": "integer"}
    for name, word in (("min", "minimum"), ("max", "maximum"), ("multiple_of", "multipleOf")):
        if name in rule:
            rule_schema[word] = rule[name]
    if "choices" in rule:
        rule_schema["enum"] = list(rule["choices"])
    return rule_schema
