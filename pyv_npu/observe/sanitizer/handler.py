"""The order of acknowledging and looking within a handler of interrupts (docs/interface.md, "Tickets")."""

from pyv_npu.observe.sanitizer.findings import AccessSide, Notebook, SanitizerRule


class Handler:
    """The order within a handler of interrupts: acknowledge, then look. What completes between a look and the
    acknowledgement after it raises no interrupt any more, and is not seen."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._look_before = self._inside = False
        self._acknowledged: AccessSide | None = None

    def entered(self) -> None:
        """Begin a handler of an external interrupt."""
        self._inside, self._look_before, self._acknowledged = True, False, None

    def acknowledged(self, cycle: int, pc: int) -> None:
        """Note that IRQ_ACK was written."""
        if self._inside:
            self._acknowledged = AccessSide("IRQ_ACK", cycle, pc)

    def looked(self) -> None:
        """Note that firmware has looked at completions."""
        self._look_before = self._look_before or self._acknowledged is None
        if self._acknowledged is not None:
            self._inside, self._acknowledged = False, None

    def over(self, cycle: int, pc: int) -> None:
        """End the handler, which has returned."""
        ack = self._acknowledged
        if ack is not None and self._look_before:
            self._notebook.add(SanitizerRule.UNREAD_INTERRUPT, ack, AccessSide("mret", cycle, pc), 0, 0)
        self._inside, self._acknowledged = False, None
