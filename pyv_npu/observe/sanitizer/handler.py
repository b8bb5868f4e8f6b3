"""Order of acknowledgement and reads of completions in an interrupt handler (docs/interface.md, "Tickets")."""

from pyv_npu.observe.sanitizer.findings import AccessSide, Notebook, SanitizerRule


class Handler:
    """Check of an interrupt handler: it must read the completions after its acknowledgement.

    A completion between the last read and the acknowledgement raises no further interrupt, so firmware misses it.
    """

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._look_before = self._inside = False
        self._acknowledged: AccessSide | None = None

    def entered(self) -> None:
        """Begin a handler for an external interrupt."""
        self._inside, self._look_before, self._acknowledged = True, False, None

    def acknowledged(self, cycle: int, pc: int) -> None:
        """Record a write of IRQ_ACK."""
        if self._inside:
            self._acknowledged = AccessSide("IRQ_ACK", cycle, pc)

    def looked(self) -> None:
        """Record a firmware read of completions."""
        self._look_before = self._look_before or self._acknowledged is None
        if self._acknowledged is not None:
            self._inside, self._acknowledged = False, None

    def over(self, cycle: int, pc: int) -> None:
        """End the handler at its return."""
        ack = self._acknowledged
        if ack is not None and self._look_before:
            self._notebook.add(SanitizerRule.UNREAD_INTERRUPT, ack, AccessSide("mret", cycle, pc), 0, 0)
        self._inside, self._acknowledged = False, None
