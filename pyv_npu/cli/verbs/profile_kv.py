"""`pyv-npu profile-kv`: thresholds of Oaken for a decoder, from runs on prompts (docs/oaken.md)."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_device.abi.errors import NpuDeviceError
from pyv_native.files import write_bytes, write_text
from pyv_npu.cli.shared import options
from pyv_npu.cli.shared.output import OK, Call, check_writable, show, write_file
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.kv_quant.study import ablation_chart, ablation_table, sweep_chart, sweep_table
from pyv_npu.report.page import render
from pyv_npu.sections import Section
from pyv_npu.text import columns

WINDOW = 128
"""Tokens of a run of --tokens."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx", help="a decoder with a key/value cache")
    parser.add_argument("--inputs", type=Path, metavar="DIR", help="a folder of .npz files with input_ids, a run each; "
                        "default: random prompts")  # fmt: skip
    parser.add_argument("--tokens", type=Path, metavar="FILE", help="token ids of a text, as of `pyv-npu perplexity`: "
                        f"runs of {WINDOW}")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, default=Path("thresholds.json"), metavar="FILE",
                        help="the file that is written, by default %(default)s")  # fmt: skip
    parser.add_argument("--study", type=Path, metavar="DIR", help="also what each part of Oaken brings and other "
                        "shares of the groups, on these keys and values: tables and charts in a folder")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the contents on standard output, too")
    options.setting_arguments(parser)


def execute(args: argparse.Namespace, call: Call) -> int:
    from pyv_npu.boot import model_file
    from pyv_npu.config import load
    from pyv_npu.kv_quant.encoded_kv import profiled, ratios_of
    from pyv_npu.studies.perplexity import check_tokens, read_tokens
    from pyv_npu.workloads.data import prompts
    from toolchain.decoders.decoder import load_decoder

    check_writable(args.output, "-o")
    effective = load(args.config, None, dict(args.settings))
    options.check_trusted(effective, args)
    config = effective.config
    decoder = load_decoder(model_file(args.model))
    if args.tokens is not None:
        if args.inputs is not None:
            raise UsageError("--tokens: --inputs has runs already; give one of them")
        tokens = read_tokens(args.tokens)
        check_tokens(tokens, decoder, f"--tokens {args.tokens}")
        shown: Sequence[Sequence[int]] = [tokens[at : at + WINDOW] for at in range(0, len(tokens), WINDOW)]
    else:
        shown = prompts(decoder, _files(args.inputs), config.run.seed)
    ratios = ratios_of(config.npu.kv_quant)
    seen: list[list[Any]] = [[] for _ in decoder.caches]
    watch = None if args.study is None else lambda index, cache: seen[index].append(cache)
    document = profiled(decoder, shown, ratios, watch).document()
    found = {} if args.study is None else _study(seen, decoder.caches[0].head_dim, decoder.name)
    write_file(args.output, "-o", json.dumps(document) + "\n")
    if args.study is not None:
        _write_study(args.study, found, decoder.name)
    if args.json:
        show(json.dumps({"schema": 1, **document, **found}))
    else:
        show(_text(document, len(shown), ratios, args.output) + _study_text(found, args.study))
    return OK


def _study(seen: Sequence[Sequence[Any]], head_dim: int, name: str) -> dict[str, Any]:
    """The tables of the study; `seen`: each cache in each run. BadInputError: these keys and values cannot be
    encoded."""
    import numpy as np

    from pyv_npu.kv_quant.ablations import ablations, ratio_sweep
    from pyv_npu.kv_quant.encoded_kv import tokens_by_channels
    from pyv_npu.kv_quant.synthetic import RATIO_SWEEP

    whole = [np.concatenate([tokens_by_channels(np.asarray(one, np.float32)) for one in cache]) for cache in seen]
    layers = list(zip(whole[::2], whole[1::2], strict=True))
    try:
        return {
            "ablations": [row._asdict() for row in ablations(layers, head_dim)],
            "ratios": [row._asdict() for row in ratio_sweep(layers, RATIO_SWEEP)],
        }
    except NpuDeviceError as error:
        raise BadInputError(f"{name}: --study: {error}") from None


def _write_study(folder: Path, found: dict[str, Any], name: str) -> None:
    from pyv_npu.workloads.kv_figures import csv_of

    of = f"keys and values of {name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table, rows in found.items():
            write_bytes(folder / f"{table}.csv", csv_of(rows))
        charts = [ablation_chart(found["ablations"], of), sweep_chart(found["ratios"], of)]
        page = render(f"{name}: errors of quantized keys and values", [], [], [Section("study", "Errors", charts)])
        write_text(folder / "report.html", page)
    except OSError as error:
        raise UsageError(f"--study {folder}: {error.strerror}: choose another place") from None


def _study_text(found: dict[str, Any], folder: Path | None) -> str:
    if folder is None:
        return ""

    return (
        f"\n{folder}: relative errors by variant\n\n{ablation_table(found['ablations'])}\nby shares of outer, middle "
        f"and inner group\n\n{sweep_table(found['ratios'])}"
    )


def _files(folder: Path | None) -> list[Path]:
    """The inputs in a folder, by name. BadInputError where there are none."""
    if folder is None:
        return []
    if not folder.is_dir():
        raise BadInputError(f"--inputs {folder}: must be a folder of .npz files with input_ids")
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise BadInputError(f"--inputs {folder}: no .npz file in it: one with input_ids is a run")
    return files


def _text(document: dict[str, Any], runs: int, ratios: tuple[float, ...], path: Path) -> str:
    heads = ("layer", "side", "outer low", "inner low", "inner high", "outer high")
    rows = [
        (str(layer), side, *(f"{value:.4g}" for value in (low[0], low[1], high[1], high[0])))
        for side in ("key", "value")
        for layer, (low, high) in enumerate(
            zip(document[side]["lower_threshold"], document[side]["upper_threshold"], strict=True)
        )
    ]
    shares = "/".join(f"{100 * one:g}" for one in ratios)
    return f"{path}: mean of {runs} runs, outer/middle/inner {shares} %\n\n{columns(heads, rows)}"
