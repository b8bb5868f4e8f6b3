"""The result of a built-in decoder model as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.report import tokens
from pyv_npu.text import MISSING, columns, lines_of
from pyv_npu.workloads.text import codes_row


def render_llm(result: Mapping[str, Any], clock_hz: int) -> str:
    """What ran, how long it took, the bound, and where keys and values went."""
    llm = result["llm"]
    work = f"{llm['tokens']} tokens" if llm["phase"] == "prefill" else f"one token at context {llm['context']}"
    bound = llm["bound"]
    limit = max(bound, key=lambda name: bound[name])
    share = f"{llm['bound_share']:.1%} of the cycles"
    (moved,) = llm["kv_tokens"]
    rows = [
        ("commands", f"{llm['commands']} for {llm['layers']} layers"),
        ("cycles", f"{result['cycles']:,} ({_time(llm['seconds'])} at {clock_hz / 1e9:g} GHz)"),
        ("tokens per second", f"{llm['tokens_per_second']:.2f}"),
        (f"bound by {limit.removesuffix('_cycles')}", f"{bound[limit]:,} cycles, {share}"),
        ("weights", f"{llm['weight_bytes'] / 1e9:.2f} GB, {llm['qbits_weight']} bits"),
        (
            "KV in DRAM",
            f"{_bytes(llm['kv_bytes_used'])} used of {_bytes(llm['kv_bytes_alloc'])}, {llm['qbits_kv']} bits",
        ),
        ("KV moved", f"keys {moved['bytes_k']:,} and values {moved['bytes_v']:,} bytes"),
    ]
    head = f"{result['program']} {llm['phase']}, {result['sim_level']}: {llm['requests']} x {work}, timing only"
    return lines_of(head, rows) + "\n"


def render_sweep(results: Sequence[Mapping[str, Any]]) -> str:
    """A row for each width of keys and values (docs/bit-widths.md, R24)."""
    heads = ["qbits_kv", "KV bytes moved", "dma_cycles", "total_latency", "bw_usage", "tokens/s"]
    rows = []
    for result in results:
        llm = result["llm"]
        sweep, (moved,) = llm["sweep"], llm["kv_tokens"]
        usage = MISSING if sweep["bw_usage"] is None else f"{sweep['bw_usage']:.1%}"
        dma = MISSING if sweep["dma_cycles"] is None else f"{sweep['dma_cycles']:,}"
        total = moved["bytes_k"] + moved["bytes_v"]
        latency, speed = f"{sweep['total_latency']:,}", f"{llm['tokens_per_second']:.2f}"
        rows.append([str(llm["qbits_kv"]), f"{total:,}", dma, latency, usage, speed])
    llm = results[0]["llm"]
    title = f"{results[0]['program']} {llm['phase']}, {llm['requests']} requests, {llm['layers']} layers, timing only"
    return f"{title}\n\n{columns(heads, rows)}\n"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.3f} s"


def _bytes(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


def render_generated(result: Mapping[str, Any]) -> str:
    """The tokens, and how each step compares with the reference."""
    made = result["generate"]
    count = len(made["prompt"])
    rows = [
        ("prompt", " ".join(map(str, made["prompt"]))),
        ("new tokens", " ".join(map(str, made["tokens"][count:]))),
        ("commands", f"{made['commands']['prompt']} for the prompt, {made['commands']['step']} for every token"),
        ("KV", f"{made['kv_type']}, {made['kv_bytes_used']:,} of {made['kv_bytes_alloc']:,} bytes used"),
    ]
    if "cycles_by_step" in result:
        rows.append(("cycles", f"{result['cycles']:,}"))
    steps = made["steps"]
    if steps:
        worst = max(steps, key=lambda step: -1.0 if step["error"] is None else float(step["error"]))
        judged = worst["ok"] is not None
        limit = f", limit {worst['limit']:.0e}" if judged else "; not judged: weights or caches have another type"
        rows.append(("worst error of logits", f"{worst['error']:.2e} at position {worst['position']}{limit}"))
        same = sum(step["next"] == step["reference_next"] for step in steps)
        rows.append(("same choice", f"{same} of {len(steps)} positions"))
        rows += codes_row(made["codes"])
        if made["original_error"] is not None:
            error = f"{made['original_error']:.2e} against the model before it was quantized"
            rows.append(("original", f"error {error}"))
        rows += [("DIFFERS", f"position {step['position']}") for step in steps if step["ok"] is False]
    head = f"decoder {result['program']}, {result['sim_level']}, against onnx.reference"
    return "\n\n".join([lines_of(head, rows), *_steps({result["sim_level"]: result})]) + "\n"


def render_both(result: Mapping[str, Any]) -> str:
    """A comparison of loose and tight: the tokens, and how long each took."""
    made = result["loose"]["generate"]
    count = len(made["prompt"])
    rows = [
        ("prompt", " ".join(map(str, made["prompt"]))),
        ("new tokens", " ".join(map(str, made["tokens"][count:]))),
        ("same in both modes", "yes" if result["generate"]["same_tokens"] else "NO"),
    ]
    head = f"decoder {result['loose']['program']}: from the first submission of a step until firmware knows its result"
    return "\n\n".join([lines_of(head, rows), *_steps({name: result[name] for name in ("loose", "tight")})]) + "\n"


def _steps(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table with a row for the prompt and for each token, where there is time."""
    rows = [
        [
            step.name,
            str(step.makes),
            *(f"{cycles:,}" for cycles in step.cycles),
            *([step.ratio] if step.cycles[1:] else []),
        ]
        for step in tokens.steps(runs)
    ]
    return [columns(tokens.heads(runs), rows)] if rows else []
