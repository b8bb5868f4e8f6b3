"""`pyv-npu profile-kv`: thresholds of Oaken for a decoder, from runs on prompts (docs/oaken.md)."""

import argparse
import json
from pathlib import Path
from typing import Any

from pyv_npu.cli.shared import options
from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.errors import BadInputError, UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL.onnx", help="a decoder with a key/value cache")
    parser.add_argument("--inputs", type=Path, metavar="DIR", help="a folder of .npz files with input_ids, a run each; "
                        "default: random prompts")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, default=Path("thresholds.json"), metavar="FILE",
                        help="the file that is written, by default %(default)s")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the contents on standard output, too")
    options.setting_arguments(parser)


def execute(args: argparse.Namespace, call: Call) -> int:
    from pyv_npu.config import load
    from pyv_npu.kv_quant.encoded_kv import profiled, ratios_of
    from pyv_npu.workloads.data import prompts
    from toolchain.decoders.decoder import load_decoder

    config = load(args.config, None, dict(args.settings)).config
    decoder = load_decoder(args.model)
    shown = prompts(decoder, _files(args.inputs), config.run.seed)
    ratios = ratios_of(config.npu.kv_quant)
    document = profiled(decoder, shown, ratios).document()
    try:
        args.output.write_text(json.dumps(document) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"-o {args.output}: {error.strerror}: choose another place") from None
    show(json.dumps({"schema": 1, **document}) if args.json else _text(document, len(shown), ratios, args.output))
    return OK


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
    from pyv_npu.text import columns

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
