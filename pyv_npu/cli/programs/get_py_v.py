"""`pyv-npu get-py-v`: fetch the Py-V that `--core pyv` extends, for all later runs."""

import argparse

from pyv_ext.pyv_adapter import loader, pinned
from pyv_npu.cli.shared.output import OK, Call, show


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="source", default=pinned.URL, metavar="PATH|URL",
        help=f"a folder (a clone, or the unpacked files) or a git repository (default: {pinned.URL})",
    )  # fmt: skip


def execute(args: argparse.Namespace, call: Call) -> int:
    call.progress.say(f"getting {args.source}")
    folder = pinned.store_copy(args.source)
    call.progress.done()
    show(f"Py-V, commit {pinned.COMMIT[:7]}, is in {folder}; `--core pyv` uses it")
    if other := loader.home():
        show(f"{loader.HOME}={other} is set, and is used instead")
    return OK
