"""`pyv-npu calibrate`: repeat the published measurement that a preset was fitted to."""

import argparse
import json

from pyv_npu.cli.shared.output import MODEL_BUG, OK, Call, show
from pyv_npu.sections import Facts, Note, Section, Table, as_text
from pyv_npu.studies.calibration import calibrate


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help="a preset with a published measurement: neorv32-2024")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def execute(args: argparse.Namespace, call: Call) -> int:
    measurement = calibrate(args.preset)
    if args.json:
        rows = [dict(row._asdict()) for row in measurement.rows]
        show(json.dumps({"schema": 1, **measurement._asdict(), "rows": rows, "exact": measurement.exact}))
    else:
        table = Table(
            ("window", "cycles here", "published"), [(row.name, row.cycles, row.published) for row in measurement.rows]
        )
        facts = Facts([(row.name, "; ".join(row.instructions)) for row in measurement.rows])
        exact = Note(f"exact: {'yes' if measurement.exact else 'NO'}")
        title = f"preset {measurement.preset} against {measurement.source}"
        show(as_text([Section("windows", title, [table, Note(measurement.note), facts, exact])]))
    return OK if measurement.exact else MODEL_BUG
