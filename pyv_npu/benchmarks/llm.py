"""Built-in decoder models: CPU seconds, memory, cycles with the lower bound and a stored peer."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyv_npu.benchmarks.host import calibrate, peak_memory
from pyv_npu.benchmarks.peers import CALIBRATION, ONNXIM, PEERS, RECORDED
from pyv_npu.config import load
from pyv_npu.workloads.built_in import BuiltIn, Phase, Request

C1 = "onnxim-c1"


class Case(NamedTuple):
    """One row: what is run, on which configuration, compared with which stored workload."""

    request: Request
    config: str | None = None
    peer: str = ""
    limit: tuple[float, int] | None = None
    """CPU seconds and MiB that are wanted (docs/llm.md)."""


_LAYER = Request("llama3-8b", layers=1, kv_bits=16)
CASES = {
    "Llama2-7B token": Case(Request("llama2-7b"), limit=(3.0, 1024)),
    "Llama2-7B token, 8K": Case(Request("llama2-7b", context=8191)),
    "Llama2-70B token": Case(Request("llama2-70b")),
    "Mixtral-8x7B token": Case(Request("mixtral-8x7b")),
    "Llama2-7B prefill 512": Case(Request("llama2-7b", Phase.PREFILL)),
    "C1 layer, decode 511": Case(_LAYER._replace(context=511), C1, "Llama decode 511"),
    "C1 layer, prefill 512": Case(_LAYER._replace(phase=Phase.PREFILL), C1, "Llama prefill 512"),
}
LAYER = "layer0."
"""Commands of one layer; the peer has no embedding and no output matrix."""


def run_one(name: str) -> dict[str, Any]:
    """The figures of a case, timing only, hash on."""
    case = CASES[name]
    config = load([] if case.config is None else [case.config], overrides=BuiltIn.defaults).config
    began = time.process_time()
    made = BuiltIn(case.request).run(config).json
    cycles = made["cycles"]
    if case.peer:
        ends = {one["layer"]: one["cycle"] for one in made["finished"]}
        cycles = max(cycle for layer, cycle in ends.items() if layer.startswith(LAYER)) - ends["embedding"]
    return {
        "cycles": cycles, "cpu_s": time.process_time() - began, "memory_mb": peak_memory(), "events": made["events"],
        "bound": max(made["llm"]["bound"].values()), "share": made["llm"]["bound_share"],
    }  # fmt: skip


def table(names: list[str]) -> Iterator[str]:
    """The lines of the report."""
    scale = calibrate() / CALIBRATION
    yield f"{ONNXIM}: figures of {RECORDED}, CPU seconds scaled by {scale:.2f} to this host"
    yield ""
    yield f"{'tool':<11}{'case':<24}{'cycles':>15}{'of bound':>10}{'CPU s':>8}{'MB':>6}{'events':>11}  wanted"
    for name in names:
        command = [sys.executable, "-m", "pyv_npu.benchmarks.llm", "--one", name]
        made = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        case = CASES[name]
        limit = "" if case.limit is None else f"  below {case.limit[0]:.0f} s, {case.limit[1]} MB"
        share = "" if case.peer else f"{made['share']:.1%}"
        yield (
            f"{'PyV-NPU':<11}{name:<24}{made['cycles']:>15,}{share:>10}{made['cpu_s']:>8.2f}{made['memory_mb']:>6}"
            f"{made['events']:>11,}{limit}"
        )
        for peer in PEERS:
            if case.peer and (peer.tool, peer.workload) == (ONNXIM, case.peer):
                assert peer.cycles is not None and peer.cpu_s is not None
                yield (
                    f"{peer.tool:<11}{name:<24}{peer.cycles:>15,}{'':>10}{peer.cpu_s * scale:>8.0f}{peer.memory_mb:>6}"
                    f"{'':>11}  ours {100 * (made['cycles'] - peer.cycles) / peer.cycles:+.1f} %"
                )


def main() -> int:
    parser = argparse.ArgumentParser(description="built-in decoder models, their bound and a peer")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--one", choices=CASES, help="run one case here and print it as JSON")
    args = parser.parse_args()
    if args.one:
        sys.stdout.write(json.dumps(run_one(args.one)) + "\n")
        return 0
    unknown = [name for name in args.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]}: choose of {', '.join(CASES)}")
    for line in table(args.cases or list(CASES)):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
