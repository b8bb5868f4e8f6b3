"""Counters of the hart: 64-bit, writable, with an inhibit bit (privileged manual, "Hardware Performance Monitor")."""

LOW = (1 << 32) - 1
WRAP = (1 << 64) - 1


class Counter:
    """Counts with a number that only rises (cycles, retired instructions), which every call is given as `at`.

    So it costs nothing while the hart runs: what it shows is computed when somebody looks.
    """

    def __init__(self) -> None:
        self._base = 0
        """What it shows minus `at`, or what it shows while it is inhibited."""
        self.inhibited = False
        self.changes = 0
        """How often it has been written or inhibited."""

    def value(self, at: int) -> int:
        return (self._base if self.inhibited else self._base + at) & WRAP

    def set(self, value: int, at: int) -> None:
        """Show `value` at `at`."""
        self._base = value if self.inhibited else value - at
        self.changes += 1

    def set_half(self, value: int, before: int, at: int, *, high: bool) -> None:
        """Replace the high or low 32 bits of what it shows at `before`, and show that at `at`."""
        now = self.value(before)
        self.set(value << 32 | now & LOW if high else now & ~LOW | value, at)

    def inhibit(self, inhibited: bool, at: int) -> None:
        """Stop or go on counting from `at`."""
        value = self.value(at)
        self.inhibited = inhibited
        self.set(value, at)
