"""CPU seconds of `pyv-npu serve`, beside a simulator that can be installed (scripts/bench-serve; docs/serving.md).

The peer is the npm package @doublewordai/inference-lab: rules like those of our scheduler, and a roofline in place of a
machine. npm installs it in the folder of --peer, by default one of the cache, when it is not there.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from npu_device.config import NpuConfig
from npu_device.cost.tensor import peak_macs
from pyv_jit.code_cache import code_cache
from pyv_npu.config import Config, load, with_values
from pyv_npu.serving.port import BLOCKS_MAX
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.study import Serving, blocks_of, kv_storage
from pyv_npu.serving.synthetic import Drawn, draw
from pyv_npu.text import columns
from pyv_npu.workloads.built_in import BuiltIn
from toolchain.decoders.shapes import shape_of

MODEL, RATE, PROMPT, ANSWER = "llama2-7b", 5, 512, 128
PACKAGE, VERSION = "@doublewordai/inference-lab", "0.2.1"
_PEER = """
import fs from 'fs';
import { initSync, run_simulation } from '@doublewordai/inference-lab';
initSync({ module: fs.readFileSync('node_modules/@doublewordai/inference-lab/inference_lab_bg.wasm') });
const before = process.cpuUsage();
const made = run_simulation(fs.readFileSync(0, 'utf8')).metrics;
const used = process.cpuUsage(before);
console.log(JSON.stringify({ cpu: (used.user + used.system) / 1e6, ...made }));
"""


CONVERSATION = Drawn("poisson:5.4", 19_366, "lognormal:1020,0.5", "lognormal:129,1.0", 0, 16_384)
"""Like Azure's conversation trace of 2023: as many requests in an hour, lengths with its medians."""


def ours(config: Config, drawn: Drawn, kept: str, firmware: bool) -> dict[str, Any]:
    """CPU seconds of ours, this process's start not counted, and figures."""
    began, npu = time.process_time(), config.npu
    shape, kv, workload = shape_of(MODEL), kv_storage(kept), draw(drawn)
    blocks = blocks_of(shape, 0, npu, 16, kv, 16)
    limits = SchedulerConfig(min(blocks, BLOCKS_MAX) if firmware else blocks)
    made = Serving(shape, npu, kv, workload, limits, {}, core=config if firmware else None).run()
    found = made.figures
    return {
        "cpu": time.process_time() - began, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "tokens": found["output_tokens_per_second"], "ttft": found["ttft_ns"]["p50"] / 1e6,
        "e2e": found["e2e_ns"]["p50"] / 1e6, "error": made.worst,
    }  # fmt: skip


def peer_folder(given: Path | None) -> Path | str:
    """Where the peer is installed, or why it is not."""
    cache = code_cache()
    folder = given or (cache.folder / "inference-lab" if cache is not None else None)
    if folder is None:
        return "there is no cache to install it in: --peer DIR"
    if (folder / "node_modules" / PACKAGE).is_dir():
        return folder
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return "needs npm and node, which are not installed"
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"{PACKAGE}@{VERSION}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return folder if ran.returncode == 0 else f"npm install ended with {ran.returncode}: {ran.stderr.strip()[:200]}"


def peer(folder: Path, npu: NpuConfig, requests: int) -> dict[str, Any]:
    """The same of the peer, with the peaks of our machine."""
    shape = shape_of(MODEL)
    flops = 2 * peak_macs(npu.te) * npu.te.count * npu.clusters * npu.clock_hz
    given = {
        "hardware": {"name": "npu", "compute_flops": flops, "memory_bandwidth": npu.dram.bytes_per_second,
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
    ran = subprocess.run(command, input=json.dumps(given), cwd=folder, capture_output=True, text=True, check=True)
    made = json.loads(ran.stdout)
    return {"cpu": made["cpu"], "memory": None, "tokens": made["output_tokens_per_sec"], "ttft": made["ttft_p50"],
            "e2e": made["e2e_p50"], "error": None}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--conversation", action="store_true", help="19,366 requests like Azure's conversation trace")
    parser.add_argument("--preset", help="device, as of pyv-npu serve")
    parser.add_argument("--kv", default="fp16", help="how keys and values are stored, as of pyv-npu serve")
    parser.add_argument("--firmware", choices=("loose", "tight"), help="the scheduler is firmware in this mode")
    parser.add_argument("--peer", type=Path, metavar="DIR", help="folder of the peer (default: one of the cache)")
    args = parser.parse_args()
    drawn = Drawn(f"poisson:{RATE}", args.requests, str(PROMPT), str(ANSWER), 0, 1 << 20)
    if args.conversation:
        drawn = CONVERSATION
    config = load(preset=args.preset).with_defaults(BuiltIn.defaults, BuiltIn.needs).config
    if args.firmware is not None:
        config = with_values(config, {"npu.mode": args.firmware})
    npu = config.npu
    rows = {"pyv-npu serve": ours(config, drawn, args.kv, args.firmware is not None)}
    folder = "has no such lengths" if args.conversation else peer_folder(args.peer)
    if isinstance(folder, Path):
        rows["inference-lab"] = peer(folder, npu, args.requests)
    heads = ("", "CPU s", "MiB", "tokens/s", "TTFT P50 ms", "E2E P50 ms", "step error")
    cells = []
    for name, made in rows.items():
        numbers = [f"{made[key]:,.2f}" if made[key] is not None else "-" for key in ("cpu", "memory")]
        numbers += [f"{made[key]:,.1f}" for key in ("tokens", "ttft", "e2e")]
        cells.append([name, *numbers, "-" if made["error"] is None else f"{made['error']:.2%}"])
    print(f"{MODEL}: {drawn.requests} requests of {drawn.prompt} + {drawn.answer} tokens, {drawn.arrivals}")
    print(columns(heads, cells))
    if not isinstance(folder, Path):
        print(f"{PACKAGE}: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
