"""`pyv-npu calibrate`: runs the published measurement that a preset was fitted to."""

import argparse
import json

from pyv_npu.cli.shared.output import MODEL_BUG, OK, Call, show
from pyv_npu.text import columns


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help="a preset with a published measurement: neorv32-2024")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def execute(args: argparse.Namespace, call: Call) -> int:
    from pyv_npu.studies.calibration import calibrate

    measurement = calibrate(args.preset)
    if args.json:
        rows = [dict(row._asdict()) for row in measurement.rows]
        show(json.dumps({"schema": 1, **measurement._asdict(), "rows": rows, "exact": measurement.exact}))
    else:
        table = [(row.name, str(row.cycles), str(row.published)) for row in measurement.rows]
        show(f"preset {measurement.preset} against {measurement.source}\n")
        show(columns(("window", "cycles here", "published"), table))
        show(f"{measurement.note}\n")
        for row in measurement.rows:
            show(f"{row.name}: {'; '.join(row.instructions)}")
        show(f"\nexact: {'yes' if measurement.exact else 'NO'}")
    return OK if measurement.exact else MODEL_BUG
