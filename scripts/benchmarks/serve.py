"""CPU seconds and memory of `pyv-npu serve`, compared with another simulator.

The peer is the npm package @doublewordai/inference-lab, with scheduling rules like ours and a roofline model instead of
a machine. If missing, npm installs it in the folder of --peer, by default in the cache (docs/serving.md).
"""

import argparse
import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.host import missing, peak_memory
from benchmarks.runner import positive
from npu_device.config import NpuConfig
from npu_device.cost.tensor import peak_macs
from pyv_native.code_cache import code_cache
from pyv_npu.config import Config, load, with_values
from pyv_npu.config.shape_file import shape_of
from pyv_npu.errors import UsageError
from pyv_npu.serving.port import BLOCKS_MAX
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.study import Serving, blocks_of, kv_storage
from pyv_npu.serving.synthetic import Drawn, draw
from pyv_npu.text import MISSING, columns
from pyv_npu.workloads.built_in import BuiltIn

MODEL, RATE, PROMPT, ANSWER = "llama2-7b", 5, 512, 128
PACKAGE, VERSION = "@doublewordai/inference-lab", "0.2.1"
_PEER = """
import fs from 'fs';
import { initSync, run_simulation } from '@doublewordai/inference-lab';
initSync({ module: fs.readFileSync('node_modules/@doublewordai/inference-lab/inference_lab_bg.wasm') });
const before = process.cpuUsage();
const metrics = run_simulation(fs.readFileSync(0, 'utf8')).metrics;
const used = process.cpuUsage(before);
console.log(JSON.stringify({ cpu: (used.user + used.system) / 1e6, ...metrics }));
"""
CONVERSATION = Drawn("poisson:5.4", 19_366, "lognormal:1020,0.5", "lognormal:129,1.0", 0, 16_384)
"""Like Azure's conversation trace of 2023: the same number of requests per hour and median lengths."""


class ServingFigures(NamedTuple):
    """Figures of a simulator. CPU seconds exclude process start-up."""

    cpu_s: float
    memory_mb: int | None
    tokens_per_s: float
    ttft_ms: float
    e2e_ms: float
    step_error: float | None


def ours(config: Config, requests: Drawn, kv_format: str, firmware: bool) -> ServingFigures:
    """Serve the requests in this process."""
    start, npu = time.process_time(), config.npu
    shape, kv, workload = shape_of(MODEL), kv_storage(kv_format), draw(requests)
    blocks = blocks_of(shape, 0, npu, 16, kv, 16)
    limits = SchedulerConfig(min(blocks, BLOCKS_MAX) if firmware else blocks)
    result = Serving(shape, npu, kv, workload, limits, {}, core=config if firmware else None).run()
    figures = result.figures
    return ServingFigures(
        time.process_time() - start, peak_memory(), figures["output_tokens_per_second"],
        figures["ttft_ns"]["p50"] / 1e6, figures["e2e_ns"]["p50"] / 1e6, result.worst,
    )  # fmt: skip


def peer_folder(folder: Path | None) -> Path | str:
    """Return the folder of the installed peer, by default in the cache, or the reason why it is missing."""
    cache = code_cache()
    folder = folder or (cache.folder / "inference-lab" if cache is not None else None)
    if folder is None:
        return "there is no cache to install it in: --peer DIR"
    if (folder / "node_modules" / PACKAGE).is_dir():
        return folder
    if reason := missing("npm", "node"):
        return reason
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"{PACKAGE}@{VERSION}"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        return f"npm install ended with {process.returncode}: {process.stderr.strip()[:200]}"
    return folder


def peer(folder: Path, npu: NpuConfig, requests: int) -> ServingFigures:
    """Serve the same requests by the peer, with the peak rates of our machine."""
    shape = shape_of(MODEL)
    flops = 2 * peak_macs(npu.te) * npu.te.count * npu.clusters * npu.clock_hz
    simulation: Mapping[str, Any] = {
        "hardware": {"name": "npu", "compute_flops": flops, "memory_bandwidth": npu.dram.rate,
                     "memory_capacity": npu.dram.size, "bytes_per_param": 2},
        "model": {"name": MODEL, "num_parameters": shape.parameters, "num_layers": shape.layers,
                  "hidden_dim": shape.width, "num_heads": shape.heads, "num_kv_heads": shape.kv_heads,
                  "max_seq_len": 4096},
        "scheduler": {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "policy": "fcfs",
                      "enable_chunked_prefill": True, "block_size": 16},
        "workload": {"arrival_pattern": "poisson", "arrival_rate": RATE, "num_requests": requests, "seed": 1,
                     "input_len_dist": {"type": "fixed", "value": PROMPT},
                     "output_len_dist": {"type": "fixed", "value": ANSWER}},
        "simulation": {"log_interval": 5},
    }  # fmt: skip
    command = ["node", "--input-type=module", "-e", _PEER]
    text = json.dumps(simulation)
    process = subprocess.run(command, input=text, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        raise UsageError(f"{PACKAGE} ended with {process.returncode}: {process.stderr.strip()[:200]}")
    metrics = json.loads(process.stdout)
    return ServingFigures(
        metrics["cpu"], None, metrics["output_tokens_per_sec"], metrics["ttft_p50"], metrics["e2e_p50"], None
    )


def row(name: str, figures: ServingFigures) -> list[str]:
    """Return the cells of a row of the table."""
    memory, error = figures.memory_mb, figures.step_error
    return [
        name, f"{figures.cpu_s:,.2f}", MISSING if memory is None else f"{memory:,}",
        *(f"{value:,.1f}" for value in (figures.tokens_per_s, figures.ttft_ms, figures.e2e_ms)),
        MISSING if error is None else f"{error:.2%}",
    ]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=positive, default=1000, help="how many (default %(default)s)")
    parser.add_argument("--conversation", action="store_true", help="19,366 requests like Azure's conversation trace")
    parser.add_argument("--preset", help="device, as of pyv-npu serve")
    parser.add_argument("--kv", default="fp16", help="how keys and values are stored, as of pyv-npu serve")
    parser.add_argument("--firmware", choices=("loose", "tight"), help="the scheduler is firmware in this mode")
    parser.add_argument("--peer", type=Path, metavar="DIR", help="folder of the peer (default: one of the cache)")


def run(args: argparse.Namespace) -> None:
    """Print a table of our figures and the peer's, or why the peer is missing."""
    requests = Drawn(f"poisson:{RATE}", args.requests, str(PROMPT), str(ANSWER), 0, 1 << 20)
    if args.conversation:
        requests = CONVERSATION
    config = load(preset=args.preset).with_defaults(BuiltIn.defaults, BuiltIn.needs).config
    if args.firmware is not None:
        config = with_values(config, {"npu.mode": args.firmware})
    rows = [row("pyv-npu serve", ours(config, requests, args.kv, args.firmware is not None))]
    folder = "has no such lengths" if args.conversation else peer_folder(args.peer)
    if isinstance(folder, Path):
        rows.append(row("inference-lab", peer(folder, config.npu, args.requests)))
    print(f"{MODEL}: {requests.requests} requests of {requests.prompt} + {requests.answer} tokens, {requests.arrivals}")
    print(columns(("", "CPU s", "MiB", "tokens/s", "TTFT P50 ms", "E2E P50 ms", "step error"), rows))
    if not isinstance(folder, Path):
        print(f"{PACKAGE}: {folder}")
