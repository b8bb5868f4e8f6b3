"""PMP entries for Python (`pyv_ext.machine.pmp`)."""

from typing import Any

from pyv_ext.machine import pmp
from pyv_ext.machine.functions import MachineState
from pyv_ext.machine.state import ENTRIES, HartState
from pyv_native.records import layout
from pyv_native.state import WORD32, Fields, StateError

Spans = tuple[tuple[int, int], ...]
"""Address ranges [low, end), in ascending order."""


class Pmp:
    """Registers pmpcfg, which hold the bytes of four entries each, and pmpaddr, with their locks."""

    def __init__(self, records: MachineState) -> None:
        self._records = records
        self._hart = records.machine.hart
        first = layout(HartState).fields["pmpcfg"].word
        self._words = records.words[first : first + ENTRIES // 4 + ENTRIES]

    @property
    def _largest(self) -> int:
        """Largest value of pmpaddr."""
        return pmp.ADDRESS if self._hart.wide else WORD32

    @property
    def cfg(self) -> bytes:
        """Configuration bytes of all entries."""
        return b"".join(word.to_bytes(4, "little") for word in self._words[: ENTRIES // 4])

    @property
    def addr(self) -> list[int]:
        return self._words[ENTRIES // 4 :].tolist()

    @property
    def entries(self) -> bytes:
        """Content of all registers, as a key of the rights."""
        return self._words.tobytes()

    def allows(self, address: int, size: int, rights: int, mode: int) -> bool:
        """Check whether all bytes of an access have all the rights in a privilege mode."""
        return bool(self._records.execute(pmp.allows, address, size, rights, mode))

    def restricts(self, mode: int) -> bool:
        """Check whether the mode lacks a right at any address."""
        return bool(self._records.execute(pmp.restricts, mode))

    def fetchable(self, mode: int) -> Spans:
        """Return the ranges in which a mode may fetch."""
        spans: list[tuple[int, int]] = []
        low = 0
        while low < pmp.SPACE:
            end = self._records.execute(pmp.next_edge, low)
            if self._records.execute(pmp.rights_at, low, mode) & pmp.EXECUTE:
                first = spans.pop()[0] if spans and spans[-1][1] == low else low
                spans.append((first, end))
            low = end
        return tuple(spans)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        return {"cfg": self.cfg, "addr": self.addr}

    def load_state(self, state: Any) -> None:
        """Restore a state; StateError for bytes that no write could have set."""
        fields = Fields(state, "cfg", "addr")
        cfg, addr = fields.data("cfg", ENTRIES), fields.integers("addr", 0, self._largest, ENTRIES)
        for entry, byte in enumerate(cfg):
            if byte & ~pmp.WRITABLE or byte & 3 == pmp.WRITE:
                raise StateError(f"{byte:#x} is no configuration of a region", "cfg", entry)
        words = [int.from_bytes(cfg[offset : offset + 4], "little") for offset in range(0, ENTRIES, 4)]
        for index, word in enumerate([*words, *addr]):
            self._words[index] = word
        self._hart.pmp_writes += 1
        self._records.execute(pmp.guard)
