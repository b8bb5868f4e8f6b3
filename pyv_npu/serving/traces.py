"""Readers of workload files of other projects; the header determines the format.

| form | file | fields |
|---|---|---|
| llmservingsim | JSONL, our format, too | input_toks, output_toks, arrival_time_ns, or session_id with sub_requests |
| mooncake | JSONL | timestamp (ms), input_length, output_length, hash_ids (a name per 512 tokens of the prompt) |
| vidur | CSV | arrived_at (s), num_prefill_tokens, num_decode_tokens |
| azure | CSV | TIMESTAMP (a date), ContextTokens, GeneratedTokens |
| burstgpt | CSV | Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type |

Sources: the files' own projects: LLMServingSim workloads/README.md, Mooncake's traces, Vidur's data/processed_traces,
Azure's public dataset of 2023 and 2024, BurstGPT's data.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from pyv_native.files import MAX_RESULT, check_input
from pyv_npu.errors import BadInputError, did_you_mean
from pyv_npu.serving.requests import MOST_NS, MOST_REQUESTS, MOST_TOKENS, Request, Workload
from pyv_npu.serving.synthetic import ARRIVALS

MOONCAKE_UNIT = 512
"""Tokens per hash in Mooncake's traces."""
_NS = 1_000_000_000


def read_workload(path: Path, most: int | None = None) -> Workload:
    """Read the requests of a file, at most the first `most`. BadInputError names file, line, value and rule."""
    if not path.exists():
        hint = did_you_mean(str(path).partition(":")[0], [form.partition(":")[0] for form in ARRIVALS])
        raise BadInputError(f"--workload {path}: no such file: name a file, or arrivals: {', '.join(ARRIVALS)}{hint}")
    try:
        check_input(path, MAX_RESULT)
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInputError(f"--workload {path}: {error.strerror}: name a file") from None
    except UnicodeDecodeError:
        raise BadInputError(f"{path}: is not text in UTF-8; a workload is JSONL or CSV") from None
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    if not first:
        raise BadInputError(f"{path}: is empty; a workload has a request on each line")
    if first.lstrip().startswith("{"):
        names, rows = next(_json(path, lines)).names, _json(path, lines)
    else:
        names, rows = {name.strip() for name in first.split(",")}, _csv(path, lines)
    form, reader = next(((form, reader) for form, fields, reader in _FORMS if names.issuperset(fields)), ("", None))
    if reader is None:
        forms = "; ".join(f"{form}: {','.join(fields)}" for form, fields, _ in _FORMS)
        raise BadInputError(f"{path}: line 1: {first[:60]!r} is of no known form ({forms})")
    limit = MOST_REQUESTS if most is None else most
    requests, omitted = list[Request](), 0
    for row in rows:
        read = reader(row, len(requests))
        omitted += not read
        requests += read
        if len(requests) >= limit:
            break
    requests = _from_zero(requests[:limit]) if form in ("azure", "burstgpt") else requests[:limit]
    if not requests:
        raise BadInputError(f"{path}: holds no request; give at least one")
    return Workload(path.name, form, tuple(requests), omitted=omitted)


class _Row:
    """Row of a file, by field."""

    def __init__(self, path: Path, line: int, fields: Mapping[str, Any]) -> None:
        self._location, self._fields = f"{path}: line {line}", fields

    def fail(self, name: str, value: object, rule: str) -> BadInputError:
        return BadInputError(f"{self._location}: {name} {value!r}: {rule}")

    @property
    def names(self) -> set[str]:
        return {name for name in self._fields if self.has(name)}

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def get(self, name: str) -> Any:
        if not self.has(name):
            raise BadInputError(f"{self._location}: no {name}: every request has one")
        return self._fields[name]

    def integer(self, name: str, low: int, high: int) -> int:
        """Return a whole number within bounds, from a number or from text."""
        value = self.get(name)
        number = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, float | str):
            exact = _decimal(value)
            if exact is not None and -MOST_NS < exact < MOST_NS and exact == exact.to_integral_value():
                number = int(exact)
        if number is None:
            raise self.fail(name, value, "must be a whole number")
        if not low <= number <= high:
            raise self.fail(name, number, f"must be {low}..{high}")
        return number

    def nanoseconds(self, name: str, unit: int) -> int:
        """Return a time in ns, from a field in units of `unit` ns."""
        value = self.get(name)
        exact = _decimal(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
        if exact is None or not 0 <= exact <= MOST_NS or exact * unit > MOST_NS:
            raise self.fail(name, value, "must be a number of at least 0")
        return int(exact * unit)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a list; empty if the field is missing."""
        if not self.has(name):
            return ()
        value = self.get(name)
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) for item in value
        ):
            raise self.fail(name, str(value)[:40], "must be a list of whole numbers")
        return tuple(value)

    def within(self, name: str, index: int, fields: object) -> "_Row":
        if not isinstance(fields, Mapping):
            raise self.fail(f"{name}[{index}]", fields, "must be an object")
        row = _Row(Path(), 0, fields)
        row._location = f"{self._location}: {name}[{index}]"
        return row


def _decimal(value: float | str) -> Decimal | None:
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


# -- the files ---------------------------------------------------------------------------------------------------------


def _json(path: Path, lines: list[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            raise BadInputError(f"{path}: line {number}: {line[:40]!r}: must be a JSON object") from None
        if not isinstance(document, dict):
            raise BadInputError(f"{path}: line {number}: {line[:40]!r}: must be a JSON object")
        yield _Row(path, number, document)


def _csv(path: Path, lines: list[str]) -> Iterator[_Row]:
    rows = csv.reader(lines)
    heads: list[str] = []
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise BadInputError(f"{path}: line {rows.line_num}: {error}: correct the line") from None
        if not any(cell.strip() for cell in cells):
            continue
        if not heads:
            heads = [cell.strip() for cell in cells]
        elif len(cells) != len(heads):
            raise BadInputError(f"{path}: line {rows.line_num}: {len(cells)} fields: the header names {len(heads)}")
        else:
            yield _Row(path, rows.line_num, dict(zip(heads, cells, strict=True)))


# -- the forms ---------------------------------------------------------------------------------------------------------


def _servingsim(row: _Row, first: int) -> list[Request]:
    arrival = row.integer("arrival_time_ns", 0, MOST_NS) if row.has("arrival_time_ns") else 0
    priority = row.integer("priority", -(1 << 31), 1 << 31) if row.has("priority") else 0
    if not row.has("sub_requests"):
        session = str(row.get("session_id")) if row.has("session_id") else ""
        return [_call(row, first, arrival, priority, session)]
    calls = row.get("sub_requests")
    if not isinstance(calls, list) or not calls:
        raise row.fail("sub_requests", calls, "must be a list of at least one call")
    session, requests, gap = str(row.get("session_id")), list[Request](), 0
    for index, fields in enumerate(calls):
        call = row.within("sub_requests", index, fields)
        after = first + index - 1 if index else None
        requests.append(_call(call, first + index, arrival, priority, session, after, gap))
        gap = call.integer("tool_duration_ns", 0, MOST_NS) if call.has("tool_duration_ns") else 0
    return [*map(_answered, requests, requests[1:]), requests[-1]]


def _answered(call: Request, following: Request) -> Request:
    """Return a call with the tokens of its answer, if the prompt of the next call contains them."""
    count, tokens = call.input_toks, following.tokens
    if call.answer or not call.tokens or tokens[:count] != call.tokens:
        return call
    return replace(call, answer=tokens[count : call.total])


def _call(
    row: _Row, index: int, arrival: int, priority: int, session: str, after: int | None = None, gap: int = 0
) -> Request:
    count, tokens = row.integer("input_toks", 1, MOST_TOKENS), row.integers("input_tok_ids")
    if tokens and len(tokens) != count:
        raise row.fail("input_tok_ids", f"{len(tokens)} tokens", f"must be as many as input_toks, {count}")
    answer, answer_tokens = row.integer("output_toks", 1, MOST_TOKENS), row.integers("output_tok_ids")
    return Request(index, arrival, count, answer, priority, session, after, gap, tokens, answer=answer_tokens[:answer])


def _mooncake(row: _Row, first: int) -> list[Request]:
    count = row.integer("input_length", 1, MOST_TOKENS)
    names = row.integers("hash_ids")
    if names and len(names) * MOONCAKE_UNIT < count:
        raise row.fail("hash_ids", f"{len(names)} names", f"must name each {MOONCAKE_UNIT} of {count} tokens")
    return [
        Request(first, row.nanoseconds("timestamp", 1_000_000), count, row.integer("output_length", 1, MOST_TOKENS),
                units=names, unit_tokens=MOONCAKE_UNIT if names else 0)
    ]  # fmt: skip


def _vidur(row: _Row, first: int) -> list[Request]:
    prompt, answer = (row.integer(name, 1, MOST_TOKENS) for name in ("num_prefill_tokens", "num_decode_tokens"))
    return [Request(first, row.nanoseconds("arrived_at", _NS), prompt, answer)]


def _azure(row: _Row, first: int) -> list[Request]:
    prompt, answer = (row.integer(name, 1, MOST_TOKENS) for name in ("ContextTokens", "GeneratedTokens"))
    return [Request(first, _date(row), prompt, answer)]


def _date(row: _Row) -> int:
    """Return the ns since 1970 of a date with up to nine decimals of seconds."""
    text = str(row.get("TIMESTAMP")).strip()
    seconds, _, rest = text.partition(".")
    digits = rest.rstrip("Z").partition("+")[0]
    try:
        day = datetime.fromisoformat(seconds.rstrip("Z"))
    except ValueError:
        raise row.fail("TIMESTAMP", text, "must be a date like 2023-11-16 18:15:46.6805900") from None
    if (digits and not (digits.isascii() and digits.isdigit())) or len(digits) > 9 or day.year < 1970:
        raise row.fail("TIMESTAMP", text, "must be a date like 2023-11-16 18:15:46.6805900")
    if day.tzinfo is None:
        day = day.replace(tzinfo=UTC)
    return int(day.timestamp()) * _NS + int(digits.ljust(9, "0") or 0)


def _burstgpt(row: _Row, first: int) -> list[Request]:
    """Return the request of a call, or [] for a failed call, which has no response."""
    prompt, answer = (row.integer(name, 0, MOST_TOKENS) for name in ("Request tokens", "Response tokens"))
    at = row.nanoseconds("Timestamp", _NS)
    return [Request(first, at, prompt, answer)] if prompt and answer else []


_FORMS: tuple[tuple[str, tuple[str, ...], Callable[[_Row, int], list[Request]]], ...] = (
    ("llmservingsim", ("input_toks",), _servingsim),
    ("llmservingsim", ("sub_requests",), _servingsim),
    ("mooncake", ("input_length",), _mooncake),
    ("vidur", ("arrived_at", "num_prefill_tokens", "num_decode_tokens"), _vidur),
    ("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _azure),
    ("burstgpt", ("Timestamp", "Request tokens", "Response tokens"), _burstgpt),
)
"""Forms, with the fields by which they are recognised, and their readers."""


def _from_zero(requests: list[Request]) -> list[Request]:
    """Shift arrivals so that the first request arrives at 0."""
    begin = min((request.arrival_ns for request in requests), default=0)
    return [replace(request, arrival_ns=request.arrival_ns - begin) for request in requests]
