"""Errors of runs: tickets, findings of the sanitizer, and the effect of injected faults."""

from collections.abc import Mapping
from typing import Any

from pyv_npu.result import SHOWN_ERRORS, Runs
from pyv_npu.sections import Facts, Heading, Note, Part, Table, Value

SHOWN_FINDINGS = 10
SHOWN_FIRINGS = 5


def errors(runs: Runs) -> list[Part]:
    """Return the first error tickets of each run with their reasons, and the number of the others."""
    rows: list[list[Value]] = []
    parts: list[Part] = []
    for mode, run in runs.items():
        npu = run["npu"] or {}
        log = npu.get("error_log", ())
        rows += [
            [str(row["ticket"]), mode, row["opcode"] or "none", row["cycle"], row["name"], row["reason"],
             row["submitted_at"] or "an unknown place"]
            for row in log[:SHOWN_ERRORS]
        ]  # fmt: skip
        more = max(npu.get("errors", 0), len(log)) - len(log[:SHOWN_ERRORS]) if log else 0
        parts += [Note(f"{mode}: and {more:,} more", "muted")] if more else []
    heads = ("ticket", "mode", "operation", "cycle", "code", "reason", "submitted at")
    return [Table(heads, rows), *parts] if rows else []


def sanitizer(runs: Runs) -> list[Part]:
    """Return findings, each with its two sides, and a note with their number for each checked run."""
    parts = list[Part]()
    for name, run in runs.items():
        findings = (run.get("sanitizer") or {}).get("findings", ())
        if "sanitizer" in run:
            parts.append(Note(f"{name}: {findings_headline(run['sanitizer'])}"))
        for at, finding in enumerate(findings[:SHOWN_FINDINGS], 1):
            times = f" ({finding['count']:,} times)" if finding["count"] > 1 else ""
            end = finding["address"] + finding["bytes"]
            address_range = f"{finding['address']:#010x}..{end:#010x}" + (
                f" ({finding['symbol']})" if finding["symbol"] else ""
            )
            facts = [(side["what"], _side(side)) for side in (finding["first"], finding["second"])]
            facts += [("bytes", address_range), ("note", finding["note"] or ""), ("remedy", finding["remedy"])]
            parts += [Heading(f"{at}. {finding['rule']}: {finding['text']}{times}"),
                      Facts([fact for fact in dict.fromkeys(facts) if fact[1]])]  # fmt: skip
        if len(findings) > SHOWN_FINDINGS:
            parts.append(Note(f"{len(findings) - SHOWN_FINDINGS:,} more in result.json and in --json", "muted"))
    return parts


def findings_headline(sanitizer: Mapping[str, Any]) -> str:
    """Format the number of findings of each rule."""
    findings, rules = sanitizer["findings"], dict[str, int]()
    for finding in findings:
        rules[finding["rule"]] = rules.get(finding["rule"], 0) + finding["count"]
    counts = ", ".join(f"{rule} {count}" for rule, count in rules.items())
    suffix = f"; {sanitizer['dropped']} more not kept" if sanitizer["dropped"] else ""
    count = f"{len(findings)} finding{'s' * (len(findings) != 1)} ({counts})" if findings else "no findings"
    return f"sanitizer: {count}{suffix}"


def _side(side: Mapping[str, Any]) -> str:
    pc = "" if side["pc"] is None else f", pc {side['pc']:#010x}"
    place = f" ({side['place']})" if side["place"] else ""
    ticket = "" if side["ticket"] is None else f", ticket {side['ticket']}"
    caller = f", called from {side['caller']}" if side["caller"] else ""
    return f"cycle {side['cycle']}{pc}{place}{ticket}{caller}"


def faults(runs: Runs) -> list[Part]:
    """Return the outcome of injected faults, and their firings."""
    parts: list[Part] = []
    for name, run in runs.items():
        effect = run.get("faults")
        if effect is None:
            continue
        facts = [("outcome", f"{effect['outcome']}: {effect['meaning']}")]
        if effect["detected_by"]:
            facts.append(("noticed by", ", ".join(effect["detected_by"])))
        if effect["cycles_lost"] is not None:
            facts.append(("cycles lost", f"{effect['cycles_lost']:,} of {effect['cycles_without']:,}"))
        rows: list[tuple[int, str, str]] = []
        for fault in effect["injected"]:
            facts.append(("fault", f"{fault['name']}: {fault['fault']}" if fault["name"] else fault["fault"]))
            firings = fault["fired"]
            rows += [
                (firing["cycle"], fault["name"] or fault["fault"], firing["what"]) for firing in firings[:SHOWN_FIRINGS]
            ]
            if len(firings) > SHOWN_FIRINGS or not firings:
                more = f"and {len(firings) - SHOWN_FIRINGS:,} times more" if firings else "it never acted"
                facts.append(("", more))
        for entry in effect["recovered"]:
            cycles = entry["cycle"] - entry["since"]
            rows.append((entry["cycle"], "driver", f"{entry['text']}, after {cycles:,} cycles without progress"))
        if effect["recoveries"] > len(effect["recovered"]):
            facts.append(("", f"and {effect['recoveries'] - len(effect['recovered']):,} recoveries more"))
        cells = [(f"{cycle:,}", *words) for cycle, *words in sorted(rows)]
        parts += [Heading(name), Facts(facts), Table(("core cycle", "fault or driver", "event"), cells)]
    return parts
