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
    if spm.interleave == "64B" and spm.size % (64 * spm.banks):
        raise BadInputError(
            f"npu.spm.size = {spm.size}: must be a multiple of 64 x npu.spm.banks = {64 * spm.banks} with "
            f"npu.spm.interleave = 64B; nearest is {spm.size - spm.size % (64 * spm.banks)}"
        )
    dma = config.npu.dma
    if dma.direction == "split" and dma.channels != 2:
        raise BadInputError(
            f"npu.dma.direction = split: needs npu.dma.channels = 2, one to read and one to write, "
            f"and there are {dma.channels}; set 2 or shared"
        )
