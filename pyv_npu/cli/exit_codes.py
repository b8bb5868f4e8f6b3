"""Exit codes of the command line (docs/results.md, "On the terminal")."""

from pyv_ext.engines.stop import Stop, StopReason
from pyv_npu.errors import PyvNpuError

OK = 0
GUEST_MAX = 63
USAGE = 64
BAD_INPUT = 65
TOOLCHAIN = 69
MODEL_BUG = 70
LIMIT = 75
DEADLOCK = 76
TRAP_LOOP = 77
INTERRUPTED = 130
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of standard output has gone."""

_OF_STOP = {
    StopReason.LIMIT: LIMIT,
    StopReason.TIMEOUT: LIMIT,
    StopReason.DEADLOCK: DEADLOCK,
    StopReason.TRAP_LOOP: TRAP_LOOP,
    StopReason.INTERRUPTED: INTERRUPTED,
}


def of_stop(stop: Stop) -> int:
    """The guest's own code up to 63 (larger ones give 63), else the code of the reason."""
    if stop.reason is StopReason.EXIT:
        return min((stop.code or 0) & 0xFFFF_FFFF, GUEST_MAX)
    return _OF_STOP[stop.reason]


def of_error(error: BaseException) -> int | None:
    """The code of an error that a user caused, None for a fault of ours."""
    from npu_device.abi.errors import NpuDeviceError
    from pyv_ext.errors import PyvExtError
    from toolchain.errors import ModelError, ToolchainError

    if isinstance(error, PyvNpuError):
        return error.exit_code
    if isinstance(error, ToolchainError):
        return BAD_INPUT if isinstance(error, ModelError) else TOOLCHAIN
    return BAD_INPUT if isinstance(error, PyvExtError | NpuDeviceError | OSError) else None
