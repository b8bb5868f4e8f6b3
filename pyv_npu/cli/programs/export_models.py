"""`pyv-npu export-models`: write the example models as ONNX files."""

import argparse

from pyv_native.files import write_bytes
from pyv_npu.cli.shared.output import OK, Call, new_folder, show
from pyv_npu.errors import UsageError, did_you_mean
from toolchain.examples import DECODERS, EXAMPLES


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=new_folder, metavar="DIR", help="where the files go")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="which models of `pyv-npu info`; all when none is named"
    )


def execute(args: argparse.Namespace, call: Call) -> int:
    models = EXAMPLES | DECODERS
    for name in args.names:
        if name not in models:
            raise UsageError(f"{name}: must be one of {', '.join(models)}{did_you_mean(name, models)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names or models:
        call.progress.say(f"exporting {name}")
        path = args.folder / f"{name}.onnx"
        write_bytes(path, models[name]().SerializeToString())
        show(str(path))
    return OK
