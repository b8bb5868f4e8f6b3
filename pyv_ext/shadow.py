"""What device registers showed when they were last read, for engines that need not ask the device again.

A device declares registers that keep their values (`pyv_ext.protocols.Stable`). As long as nothing attached to the
clock has changed, which `Clock.changes` tells, another read of such a register has no effect and shows the same.
"""

SLOTS = 64
TAG, CHANGES, VALUE, CYCLES, ACTS = range(5)
"""Words of a slot: address and size of the access, `Clock.changes` at the time, what was read; cycles that the access
takes, and after how many of them it acts: nothing may be due up to there."""
WORDS = 5


def slot_of(address: int) -> int:
    """The one slot that an address may be in."""
    return (address ^ address >> 6) % SLOTS


class Shadow:
    """The values; native code reads `table`, whose items are 64-bit words."""

    def __init__(self) -> None:
        self.table = memoryview(bytearray(8 * WORDS * SLOTS)).cast("Q")

    def keep(self, address: int, size: int, changes: int, value: int, cycles: int, acts: int) -> None:
        """A load of `size` bytes that took `cycles` has shown `value`, zero-extended; `changes` is at least 1."""
        at = slot_of(address) * WORDS
        self.table[at + TAG] = address | size << 32
        self.table[at + CHANGES] = changes
        self.table[at + VALUE] = value & (1 << 32) - 1
        self.table[at + CYCLES] = cycles
        self.table[at + ACTS] = acts

    def clear(self) -> None:
        """Forget everything. No access has tag 0: native code that must ask the device looks for `changes` 0."""
        for at in range(0, len(self.table), WORDS):
            self.table[at + TAG] = 0
