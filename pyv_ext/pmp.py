"""Registers of physical memory protection (RISC-V privileged manual, version 1.12, "Physical Memory Protection")."""

ENTRIES = 16
"""Protection regions; grain 4 bytes."""

_LOCK = 0x80
_WRITABLE = 0x9F
_TOR = 0x08
_MODE = 0x18


class Pmp:
    """`cfg` bytes and `addr` registers, with their locks. One pmpcfg register holds the bytes of four regions."""

    def __init__(self) -> None:
        self.cfg = [0] * ENTRIES
        self.addr = [0] * ENTRIES

    def read_cfg(self, register: int) -> int:
        return int.from_bytes(self.cfg[4 * register : 4 * register + 4], "little")

    def write_cfg(self, register: int, value: int) -> None:
        """Locked bytes keep their content; W without R is reserved and loses its W."""
        for region, byte in enumerate(value.to_bytes(4, "little"), 4 * register):
            if not self.cfg[region] & _LOCK:
                byte &= _WRITABLE
                self.cfg[region] = byte & ~2 if byte & 3 == 2 else byte

    def write_addr(self, region: int, value: int) -> None:
        """Ignored when the region is locked, or bounds a locked region from below."""
        above = self.cfg[region + 1] if region + 1 < ENTRIES else 0
        if not self.cfg[region] & _LOCK and not (above & _LOCK and above & _MODE == _TOR):
            self.addr[region] = value
