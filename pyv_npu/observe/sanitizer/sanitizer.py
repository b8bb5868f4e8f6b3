"""Sanitizers of one platform, selected by `run.sanitize` (docs/reliability.md)."""

from pyv_ext.bus.shadow import Shadow
from pyv_ext.elf import Program
from pyv_npu.observe.latency.probe import Probed
from pyv_npu.observe.sanitizer.boundary import Boundary
from pyv_npu.observe.sanitizer.findings import AccessSide, Findings, Notebook, SanitizerRule

MEMORY = "memory"
"""Value of `run.sanitize` that also checks loads of unwritten memory."""


class Sanitizer:
    """Sanitizer of a platform; create it before the program is loaded."""

    def __init__(self, platform: Probed, program: Program) -> None:
        self._hart = platform.hart
        self._notebook = Notebook(program)
        memory = MEMORY in platform.config.run.sanitize
        self._shadow = Shadow(platform.hart, platform.bus.rams, bytes_written=memory)
        platform.bus.add_shadow(self._shadow)
        self._shadow.on_unwritten = self._unwritten
        self.boundary = Boundary(platform, self._shadow, program, self._notebook)

    def loaded(self, program: Program) -> None:
        """Mark the zeros after the content of each segment as unwritten: only the start-up code initialises them."""
        for segment in program.segments:
            content_size = len(segment.data)
            self._shadow.initialise(segment.address + content_size, segment.size - content_size, has_data=False)

    def restored(self) -> None:
        """Clear the submissions in flight after a restore; all memory counts as written."""
        self._shadow.clear()
        self.boundary.restored()

    def findings(self) -> Findings:
        """Return all findings so far."""
        return self._notebook.findings()

    def _unwritten(self, address: int, size: int, start: int) -> None:
        side = AccessSide("load", start, self._hart.pc)
        self._notebook.add(SanitizerRule.UNWRITTEN, side, side, address, size)
        self._shadow.initialise(address, size)  # report it once
