"""Presets that were fitted to a published measurement, and the measurement itself, reproduced."""

from pyv_npu.errors import UsageError
from pyv_npu.studies.calibration.window import Measurement

CALIBRATED = ("neorv32-2024",)
"""Presets with a measurement."""


def calibrate(preset: str) -> Measurement:
    """Run the measurement of a preset; UsageError for a preset without a measurement."""
    if preset not in CALIBRATED:
        raise UsageError(f"preset {preset} has no published measurement; those that have: {', '.join(CALIBRATED)}")
    from pyv_npu.studies.calibration import dcis2024

    return dcis2024.measure()
