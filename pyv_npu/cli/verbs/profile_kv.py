"""`pyv-npu profile-kv`: determine Oaken's thresholds for a decoder from runs on prompts (docs/oaken.md)."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npu_device.abi.errors import NpuDeviceError
from pyv_native.files import write_bytes, write_text
from pyv_npu.boot import model_file
from pyv_npu.cli.shared import options
from pyv_npu.cli.shared.output import OK, Call, check_writable, make_folder, show, write_errors, write_file
from pyv_npu.config import load
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.kv_quant.ablations import ablations, ratio_sweep
from pyv_npu.kv_quant.encoded_kv import profiled, ratios_of, tokens_by_channels
from pyv_npu.kv_quant.study import ablation_chart, ablation_table, shares_text, sweep_chart, sweep_table
from pyv_npu.kv_quant.synthetic import RATIO_SWEEP
from pyv_npu.report.page import render
from pyv_npu.sections import Section, Table, as_text
from pyv_npu.studies.perplexity import check_tokens, read_tokens
from pyv_npu.workloads.data import prompts
from pyv_npu.workloads.kv_figures import csv_of
from toolchain.decoders.decoder import load_decoder

WINDOW = 128
"""Number of tokens per run with --tokens."""
MAX_ROWS = 1 << 10
"""Maximum number of rows of a table: enough for all layers of a decoder."""


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
        runs: Sequence[Sequence[int]] = [tokens[at : at + WINDOW] for at in range(0, len(tokens), WINDOW)]
    else:
        runs = prompts(decoder, _files(args.inputs), config.run.seed)
    make_folder(args.study, "--study")
    ratios = ratios_of(config.npu.kv_quant)
    caches: list[list[Any]] = [[] for _ in decoder.caches]
    watch = None if args.study is None else lambda index, cache: caches[index].append(cache)
    document = profiled(decoder, runs, ratios, watch).document()
    study = {} if args.study is None else _study(caches, decoder.caches[0].head_dim, decoder.name)
    write_file(args.output, "-o", json.dumps(document) + "\n")
    if args.study is not None:
        _write_study(args.study, study, decoder.name)
    if args.json:
        show(json.dumps({"schema": 1, **document, **study}))
    else:
        tables = _study_sections(study, decoder.name) if study else []
        show(as_text([_thresholds(document, len(runs), ratios, args.output), *tables], MAX_ROWS))
    return OK


def _study(caches: Sequence[Sequence[Any]], head_dim: int, name: str) -> dict[str, Any]:
    """Return the tables of the study; `caches`: values by cache and run. Raises BadInputError if they cannot be
    encoded."""
    tensors = [np.concatenate([tokens_by_channels(np.asarray(run, np.float32)) for run in cache]) for cache in caches]
    layers = list(zip(tensors[::2], tensors[1::2], strict=True))
    try:
        return {
            "ablations": [row._asdict() for row in ablations(layers, head_dim)],
            "ratios": [row._asdict() for row in ratio_sweep(layers, RATIO_SWEEP)],
        }
    except NpuDeviceError as error:
        raise BadInputError(f"{name}: --study: {error}") from None


def _write_study(folder: Path, study: dict[str, Any], name: str) -> None:
    page = render(f"{name}: errors of quantized keys and values", [], [], _study_sections(study, name))
    with write_errors(folder, "--study"):
        for table, rows in study.items():
            write_bytes(folder / f"{table}.csv", csv_of(rows))
        write_text(folder / "report.html", page)


def _study_sections(study: dict[str, Any], name: str) -> list[Section]:
    of, variants, ratios = f"keys and values of {name}", study["ablations"], study["ratios"]
    return [
        Section("variants", "Relative errors by variant", [ablation_chart(variants, of), ablation_table(variants)]),
        Section("shares", "Relative errors by shares of outer, middle and inner group",
                [sweep_chart(ratios, of), sweep_table(ratios)]),
    ]  # fmt: skip


def _files(folder: Path | None) -> list[Path]:
    """Return the input files of a folder, sorted by name; raise BadInputError if there are none."""
    if folder is None:
        return []
    if not folder.is_dir():
        raise BadInputError(f"--inputs {folder}: must be a folder of .npz files with input_ids")
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise BadInputError(f"--inputs {folder}: no .npz file in it: one with input_ids is a run")
    return files


def _thresholds(document: dict[str, Any], runs: int, ratios: tuple[float, ...], path: Path) -> Section:
    rows = [
        (str(layer), side, low[0], low[1], high[1], high[0])
        for side in ("key", "value")
        for layer, (low, high) in enumerate(
            zip(document[side]["lower_threshold"], document[side]["upper_threshold"], strict=True)
        )
    ]
    heads = ("layer", "side", "outer low", "inner low", "inner high", "outer high")
    title = f"{path}: mean of {runs} runs, outer/middle/inner {shares_text(ratios)} %"
    return Section("thresholds", title, [Table(heads, rows)])
