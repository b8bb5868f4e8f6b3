"""Check of the ABI's tables: words of a descriptor, bits of a word, registers of a window, ranges of the memory map."""

from collections import Counter
from collections.abc import Sequence

from npu_device.abi.errors import AbiError


def check_spans(kind: str, spans: Sequence[tuple[str, int, int]], begin: int, end: int, *, gaps: bool = False) -> None:
    """Raise AbiError for names that are not unique, spans that overlap or do not fit `begin`..`end`, and gaps unless
    these are allowed. `spans`: (name, first, size), in order."""
    for name, count in Counter(name for name, _, _ in spans).items():
        if count > 1:
            raise AbiError(f"{kind} {name}: declared twice, names must be unique")
    position = begin
    for name, first, size in spans:
        if size < 1 or first < position or not (gaps or first == position):
            raise AbiError(f"{kind} {name} at {first:#x}: must start at {position:#x}{' or above' if gaps else ''}")
        position = first + size
        if position > end:
            raise AbiError(f"{kind} {name} ends at {position:#x}: must end at {end:#x} or below")
    if position != end and not gaps:
        raise AbiError(f"{kind} {spans[-1][0]} ends at {position:#x}: must end at {end:#x}")
