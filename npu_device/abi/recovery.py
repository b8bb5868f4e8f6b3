"""Records of recoveries by the driver (docs/reliability.md): `npu_recoveries`."""

from enum import unique

from npu_device.abi.descriptor import Word
from npu_device.abi.errors import TextEnum

SYMBOL = "npu_recoveries"
"""Symbol of the driver's record: the number of recoveries, then the first RECOVERIES of them."""
RECOVERIES = 16


@unique
class Recovery(TextEnum):
    """Causes of a recovery of the driver."""

    DOORBELL = 1, "doorbell lost, rung again"
    INTERRUPT = 2, "interrupt lost, completions polled"
    LATE = 3, "no progress, waited on"
    REPEATED = 4, "commands failed, submitted again"
    RESET = 5, "no progress, device reset"


RECOVERY_WORDS = (
    Word("what", 0, 4, "NPU_RECOVERY_*"),
    Word("since", 4, 4, "cycle of the last progress"),
    Word("found", 8, 4, "cycle at which the driver acted"),
    Word("detail", 12, 4, "doorbells, tickets or commands"),
)
