"""`pyv-npu calibrate`: runs the published measurement that a preset was fitted to."""

import argparse
import json

from pyv_npu.cli import console, exit_codes

NAME = "calibrate"
HELP = "run the published measurement that a timing preset was fitted to"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help="a preset with a published measurement: neorv32-2024")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def execute(args: argparse.Namespace) -> int:
    from pyv_npu.studies.calibration import calibrate

    measurement = calibrate(args.preset)
    if args.json:
        rows = [dict(row._asdict()) for row in measurement.rows]
        console.result(json.dumps({"schema": 1, **measurement._asdict(), "rows": rows, "exact": measurement.exact}))
    else:
        from pyv_npu.text import columns

        table = [(row.name, str(row.cycles), str(row.published)) for row in measurement.rows]
        console.result(f"preset {measurement.preset} against {measurement.source}\n")
        console.result(columns(("window", "cycles here", "published"), table))
        console.result(f"{measurement.note}\n")
        for row in measurement.rows:
            console.result(f"{row.name}: {'; '.join(row.instructions)}")
        console.result(f"\nexact: {'yes' if measurement.exact else 'NO'}")
    return exit_codes.OK if measurement.exact else exit_codes.MODEL_BUG
