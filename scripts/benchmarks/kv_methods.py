"""Methods that store keys and values: size, time of engines, step, server and perplexity (docs/kv-cache.md).

Prints the table of that page, a row for each method. Perplexity needs the decoder of scripts/make-smollm2.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.runner import name_in
from npu_device.kv_quant.methods import METHODS
from pyv_npu.config import Config, load
from pyv_npu.config.package_data import data_files
from pyv_npu.config.shape_file import shape_of
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.study import Products, Serving, blocks_of, kv_storage
from pyv_npu.serving.synthetic import Drawn, draw
from pyv_npu.studies.perplexity import read_tokens, scores
from pyv_npu.text import MISSING
from pyv_npu.workloads.built_in import DRAM_BYTES, BuiltIn, PhaseRequest
from toolchain.decoders.decoder import load_decoder

MODEL, PRESET = "llama2-7b", "oaken-lpddr"
STEP = PhaseRequest(MODEL, context=2047, requests=16, layers=1)
TEXT = data_files("examples", ".tokens")["essay"]
REQUESTS = Drawn("poisson:4", 32, "1024", "64", 0, 1 << 20)
TOKENS_PER_STEP, BLOCK, CHECKS, SCORED = 512, 16, 8, 512
COLUMNS = ("method", "bits", "KV, bytes", "engine, encode / decode cycles", "run longer by, cycles", "cycles, 1 layer",
         "tokens/s, 1 layer", "P99 TTFT / TPOT, ms", "error of steps", "perplexity")  # fmt: skip


def configuration() -> Config:
    """Return the configuration of the device."""
    return load(preset=PRESET).with_defaults(BuiltIn.defaults, BuiltIn.needs).config


def step_cells(config: Config, method: str) -> list[str]:
    """Return the cells of a decode step."""
    figures: Mapping[str, Any] = BuiltIn(STEP._replace(kv=method)).run(config).json
    llm = figures["llm"]
    bits = llm["kv_encoded"]["b_eff"] if "kv_encoded" in llm else METHODS[method].bits
    engines = llm.get("kv_engines")
    busy = [MISSING, MISSING]
    if engines is not None:
        busy = [f"{engines['quantize_busy']:,} / {engines['dequantize_busy']:,}", f"{engines['exposed_cycles']:,}"]
    return [f"{bits:.4g}", f"{llm['kv_bytes_used']:,}", *busy, f"{figures['cycles']:,}",
            f"{llm['tokens_per_second']:,.0f}"]  # fmt: skip


def serving_cells(config: Config, method: str, products: Products) -> list[str]:
    """Return the cells of a server. `products`: product times shared by all methods."""
    npu, shape, kv = config.npu, shape_of(MODEL), kv_storage(method)
    blocks = blocks_of(shape, 0, npu, 16, kv, BLOCK, requests=REQUESTS.requests)
    limits = SchedulerConfig(blocks, BLOCK, max_num_batched_tokens=TOKENS_PER_STEP)
    served = Serving(shape, npu, kv, draw(REQUESTS), limits, {}, checks=CHECKS).run(products)
    first, later = (served.figures[name]["p99"] / 1e6 for name in ("ttft_ns", "tpot_ns"))
    return [f"{first:.1f} / {later:.2f}", MISSING if served.worst is None else f"{served.worst:.1%}"]


def perplexities(model: Path | None, methods: list[str]) -> dict[str, str]:
    """Return the perplexity of each method, which does not depend on the device; {} without a model."""
    if model is None:
        return {}
    tokens = read_tokens(Path(TEXT))
    npu = load(overrides={"npu.dram.size": DRAM_BYTES}).config.npu
    rows = scores(load_decoder(model), npu, tokens, SCORED, methods)
    return {row.method: f"{row.perplexity:.2f}" for row in rows}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kv", nargs="+", type=name_in(METHODS), default=list(METHODS), metavar="METHOD",
                        help="methods, by default all: %(default)s")  # fmt: skip
    parser.add_argument("--model", type=Path, metavar="FILE", help="smollm2.onnx of scripts/make-smollm2")


def run(args: argparse.Namespace) -> None:
    """Print each row as soon as its method is measured."""
    methods, products = args.kv, Products()
    config = configuration()
    perplexity = perplexities(args.model, methods)
    for cells in (COLUMNS, ["---"] * len(COLUMNS)):
        print(f"| {' | '.join(cells)} |")
    for method in methods:
        cells = [method, *step_cells(config, method), *serving_cells(config, method, products)]
        print(f"| {' | '.join([*cells, perplexity.get(method, MISSING)])} |", flush=True)
