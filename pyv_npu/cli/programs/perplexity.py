"""`pyv-npu perplexity`: perplexity, bits and time of methods that store keys and values (docs/kv-cache.md)."""

import argparse
from pathlib import Path

from pyv_native.files import write_bytes, write_text
from pyv_npu.boot import model_file
from pyv_npu.cli.shared import options
from pyv_npu.cli.shared.output import OK, Call, make_folder, show, write_errors
from pyv_npu.config import load
from pyv_npu.report.page import render
from pyv_npu.sections import Section, as_text
from pyv_npu.studies.perplexity import chart, check_tokens, methods_of, read_tokens, scores, table
from pyv_npu.text import as_json
from pyv_npu.workloads.built_in import DRAM_BYTES
from pyv_npu.workloads.kv_figures import csv_of
from toolchain.decoders.decoder import load_decoder

DEFAULT = "fp16,uniform8,uniform4,oaken,kivi,kvquant,qserve"
COUNT = 512


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx", help="a decoder with a key/value cache")
    parser.add_argument("--tokens", type=Path, required=True, metavar="FILE", help="token ids of a text")
    parser.add_argument("--kv", default=DEFAULT, metavar="LIST", help="methods, by default %(default)s; fp32, the "
                        "model as it is, is always there")  # fmt: skip
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help="the last N tokens are scored (default "
                        "%(default)s), those before calibrate")  # fmt: skip
    parser.add_argument("--report", type=Path, metavar="DIR", help="also the table and a page in a folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options.setting_arguments(parser)


def execute(args: argparse.Namespace, call: Call) -> int:
    names, tokens = methods_of(args.kv), read_tokens(args.tokens)
    effective = load(args.config, None, dict(args.settings))
    options.check_trusted(effective, args)
    effective = effective.with_defaults({"npu.dram.size": DRAM_BYTES}, "default of perplexity")
    decoder = load_decoder(model_file(args.model))
    check_tokens(tokens, decoder, f"--tokens {args.tokens}")
    make_folder(args.report, "--report")
    rows = list(scores(decoder, effective.config.npu, tokens, args.count, names, call.progress.say))
    methods = [row._asdict() for row in rows]
    of = f"{Path(args.model).name}, the last {args.count} tokens of {args.tokens.name}"
    if args.report is not None:
        section = Section("perplexity", "Accuracy of keys and values", [chart(rows, of), table(rows)])
        with write_errors(args.report, "--report"):
            write_bytes(args.report / "perplexity.csv", csv_of(methods))
            write_text(args.report / "report.html", render(of, [], [], [section]))
    text = f"{of}\n\n" + as_text([Section("methods", "", [table(rows)])], len(rows))
    show(as_json({"schema": 1, "count": args.count, "methods": methods}) if args.json else text)
    return OK
