"""Records of recoveries by the driver (docs/reliability.md): `npu_recoveries`."""

from enum import IntEnum, unique

from npu_device.abi.descriptor import Word

SYMBOL = "npu_recoveries"
"""Symbol of the driver's record: the number of recoveries, then the first RECOVERIES of them."""
RECOVERIES = 16


@unique
class Recovery(IntEnum):
    """Causes of a recovery of the driver."""

    DOORBELL = 1
    INTERRUPT = 2
    LATE = 3
    REPEATED = 4
    RESET = 5


RECOVERY_TEXT = {
    Recovery.DOORBELL: "doorbell lost, rung again",
    Recovery.INTERRUPT: "interrupt lost, completions polled",
    Recovery.LATE: "no progress, waited on",
    Recovery.REPEATED: "commands failed, submitted again",
    Recovery.RESET: "no progress, device reset",
}

RECOVERY_WORDS = (
    Word("what", 0, 4, "NPU_RECOVERY_*"),
    Word("since", 4, 4, "cycle of the last progress"),
    Word("found", 8, 4, "cycle at which the driver acted"),
    Word("detail", 12, 4, "doorbells, tickets or commands"),
)

assert set(RECOVERY_TEXT) == set(Recovery), "every recovery has a text"
