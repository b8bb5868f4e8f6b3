"""Platform-level interrupt controller with one context: machine mode of hart 0 (RISC-V PLIC specification 1.0.0)."""

from typing import Any

from pyv_ext.devices.base import Register, RegisterDevice, move_record, new_record
from pyv_ext.machine import plic, state
from pyv_ext.machine.plic import CLAIM, ENABLE, ENABLED, PENDING, PRIORITY_MASK, SOURCES, THRESHOLD
from pyv_ext.machine.state import PLIC, Machine
from pyv_native.state import WORD32, Fields, StateError, inside


class Plic(RegisterDevice):
    """PLIC: sources 1..31 with level-triggered gateways.

    A gateway passes one request at a time: a high level makes its source pending; a claim takes the source into
    service; after completion the level is sampled again. A pending request remains when its level falls. A claim takes
    the enabled pending source of highest priority, the lowest among equal priorities, whatever the threshold.
    Completion of a source that is not enabled is ignored. `pyv_ext.machine.plic` implements the registers.
    """

    name = "plic"
    size = 0x400_0000
    kind = PLIC
    registers = (
        *(Register(f"PRIORITY{source}", 4 * source, mask=PRIORITY_MASK) for source in range(1, SOURCES + 1)),
        Register("PENDING", PENDING, "ro"),
        Register("ENABLE", ENABLE, mask=ENABLED),
        Register("THRESHOLD", THRESHOLD, mask=PRIORITY_MASK),
        Register("CLAIM", CLAIM),
    )

    def __init__(self) -> None:
        super().__init__()
        self.record = new_record(state.PlicRecord)

    def bind(self, machine: Machine) -> None:
        """Move the registers into the record of a machine."""
        self.record = move_record(self.record, machine.plic)

    def __getitem__(self, name: str) -> int:
        offset = next(register.offset for register in self.registers if register.name == name)
        return 0 if name == "CLAIM" else plic.read_plic(self.record, offset)

    @property
    def irq(self) -> bool:
        """Interrupt notification of the context: an enabled pending source is above the threshold."""
        return bool(plic.output(self.record))

    def stable(self, offset: int, size: int) -> bool:
        return offset != CLAIM

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """Return a register for a debugger; CLAIM is the source that a claim would take."""
        if not self.accepts(offset, size, False):
            return None
        return plic.candidate(self.record) if offset == CLAIM else plic.read_plic(self.record, offset)

    def read(self, offset: int, size: int, now: int) -> int:
        return plic.read_plic(self.record, offset)

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        plic.write_plic(self.record, offset, value)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        registers = {register.name: self[register.name] for register in self.registers}
        return {"registers": registers, "levels": self.record.levels, "in_service": self.record.service}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "registers", "levels", "in_service")
        with inside("registers"):
            content = self.read_contents(fields["registers"])
        for register in self.registers:
            value = content[register.name]
            if register.name in ("PENDING", "ENABLE") and value & 1:
                raise StateError("source 0 does not exist", "registers", register.name)
            if register.access == "ro":
                self.record.pending = value
            elif register.name != "CLAIM":
                self.write(register.offset, 4, value, 0)
        self.record.levels, self.record.service = (fields.integer(name, 0, WORD32) for name in ("levels", "in_service"))
