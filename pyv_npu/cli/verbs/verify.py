"""`pyv-npu verify`: check the files in the manifest of a folder, and its inputs that still exist."""

import argparse
from pathlib import Path

from pyv_npu import manifest
from pyv_npu.cli.shared.output import BAD_INPUT, OK, Call, diagnose, show
from pyv_npu.errors import BadInputError
from pyv_npu.studies.sweep.folder import changed_points


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="of --report, of a sweep, of a campaign, or of compile -o"
    )


def execute(args: argparse.Namespace, call: Call) -> int:
    contents = manifest.read(args.folder)
    if contents is None:
        raise BadInputError(f"{args.folder}: has no {manifest.FILE} of this package; name a folder that it has written")
    lines = [*manifest.problems(args.folder, contents), *changed_points(args.folder)]
    present = sum(Path(name).is_file() for name in contents.inputs)
    show(
        f"{args.folder}: {contents.folder_type} by PyV-NPU {contents.version}, {len(contents.files)} files, "
        f"{len(contents.inputs)} inputs of which {present} are here"
    )
    for line in lines:
        diagnose(line)
    return BAD_INPUT if lines else OK
