"""Rules between keys; the rule of a single key stands in its metadata."""

from pyv_npu.config.tree import Config
from pyv_npu.errors import BadInputError


def check_together(config: Config) -> None:
    """BadInputError where two values that are fine alone contradict each other."""
    spm = config.npu.spm
    if spm.size % spm.banks:
        raise BadInputError(
            f"npu.spm.size = {spm.size}: must be a multiple of npu.spm.banks = {spm.banks}; "
            f"nearest is {spm.size - spm.size % spm.banks}"
        )
