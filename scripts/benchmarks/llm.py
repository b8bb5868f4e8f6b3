"""CPU seconds, memory and cycles of built-in decoder models, with their lower bound and ONNXim.

Each case has a process of its own (docs/llm.md).
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.host import isolated, peak_memory
from benchmarks.peers import C1, ONNXIM, cpu_scale, scaled_peers
from benchmarks.runner import name_in
from pyv_npu.config import load
from pyv_npu.workloads.built_in import BuiltIn, Phase, PhaseRequest


class Case(NamedTuple):
    """Decoder and phase, its configuration, and the workload of a peer for comparison."""

    request: PhaseRequest
    config: str | None = None
    peer: str = ""
    limit: tuple[float, int] | None = None
    """Goals in CPU seconds and MiB (docs/llm.md)."""


_LAYER = PhaseRequest("llama3-8b", layers=1, kv_bits=16)
CASES = {
    "Llama2-7B token": Case(PhaseRequest("llama2-7b"), limit=(3.0, 1024)),
    "Llama2-7B token, 8K": Case(PhaseRequest("llama2-7b", context=8191)),
    "Llama2-70B token": Case(PhaseRequest("llama2-70b")),
    "Mixtral-8x7B token": Case(PhaseRequest("mixtral-8x7b")),
    "Llama2-7B prefill 512": Case(PhaseRequest("llama2-7b", Phase.PREFILL)),
    "C1 layer, decode 511": Case(_LAYER._replace(context=511), C1, "Llama decode 511"),
    "C1 layer, prefill 512": Case(_LAYER._replace(phase=Phase.PREFILL), C1, "Llama prefill 512"),
}
LAYER = "layer0."
"""Prefix of the commands of one layer: the peer has neither embedding nor output matrix."""


class CaseFigures(NamedTuple):
    """Figures of a case."""

    cycles: int
    cpu_s: float
    memory_mb: int
    events: int
    bound_share: float


def measure(name: str) -> CaseFigures:
    """Measure a case in this process: timing only, with the hash of events."""
    case = CASES[name]
    config = load([] if case.config is None else [case.config], overrides=BuiltIn.defaults).config
    start = time.process_time()
    result = BuiltIn(case.request).run(config).json
    cycles = result["cycles"]
    if case.peer:
        ends = {layer["layer"]: layer["cycle"] for layer in result["finished"]}
        cycles = max(cycle for layer, cycle in ends.items() if layer.startswith(LAYER)) - ends["embedding"]
    cpu = time.process_time() - start
    return CaseFigures(cycles, cpu, peak_memory(), result["events"], result["llm"]["bound_share"])


def table(names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the report."""
    source, peers = scaled_peers(cpu_scale())
    yield f"{ONNXIM}: {source}"
    yield ""
    yield f"{'tool':<11}{'case':<24}{'cycles':>15}{'of bound':>10}{'CPU s':>8}{'MB':>6}{'events':>11}  wanted"
    for name in names:
        ours, case = isolated(measure, name), CASES[name]
        limit = "" if case.limit is None else f"  below {case.limit[0]:.0f} s, {case.limit[1]} MB"
        share = "" if case.peer else f"{ours.bound_share:.1%}"
        yield (
            f"{'PyV-NPU':<11}{name:<24}{ours.cycles:>15,}{share:>10}{ours.cpu_s:>8.2f}{ours.memory_mb:>6}"
            f"{ours.events:>11,}{limit}"
        )
        for peer in peers:
            if case.peer and (peer.tool, peer.workload) == (ONNXIM, case.peer):
                assert peer.cycles is not None and peer.cpu_s is not None
                yield (
                    f"{peer.tool:<11}{name:<24}{peer.cycles:>15,}{'':>10}{peer.cpu_s:>8.0f}{peer.memory_mb:>6}"
                    f"{'':>11}  ours {100 * (ours.cycles - peer.cycles) / peer.cycles:+.1f} %"
                )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", type=name_in(CASES), metavar="CASE", help="; ".join(CASES))


def run(args: argparse.Namespace) -> None:
    """Print each line as soon as its case is measured."""
    for line in table(args.cases or list(CASES)):
        print(line, flush=True)
