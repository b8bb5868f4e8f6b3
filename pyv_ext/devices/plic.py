"""Platform-level interrupt controller with one context: machine mode of hart 0 (RISC-V PLIC specification 1.0.0)."""

from typing import Any

from pyv_ext.devices.base import WORD, Register, RegisterDevice
from pyv_ext.devices.programs import NativeForm, Programs
from pyv_native.state import WORD32, Fields, StateError, inside

SOURCES = 31
PRIORITY_MASK = 7
"""Seven priority levels; priority 0 never interrupts."""
_PRIORITIES = {4 * source: f"PRIORITY{source}" for source in range(1, SOURCES + 1)}
_ENABLED = 0xFFFF_FFFE
_OTHERS = {"PENDING": 0x1000, "ENABLE": 0x2000, "THRESHOLD": 0x20_0000, "CLAIM": 0x20_0004}

_WORDS = ("bit0", "bit1", "bit2", "pending", "enable", "threshold", "levels", "service")
"""The state, a bit for each source: of its priority, in three words; is it pending, enabled, its line high, is it in
service."""

_BEST = """
able = pending & enable & (bit0 | bit1 | bit2)
top = able & bit2 if able & bit2 else able
top = top & bit1 if top & bit1 else top
top = top & bit0 if top & bit0 else top
one = top & ~top + 1
"""
"""`top` are the enabled pending sources of highest priority, `one` the lowest of them; 0 when there is none."""
_SOURCE = " | ".join(
    f"((one & {sum(1 << source for source in range(32) if source >> bit & 1)}) != 0) << {bit}" for bit in range(5)
)
"""The number of `one`."""
_OUTPUT = _BEST + "((top & bit2) != 0) * 4 + ((top & bit1) != 0) * 2 + ((top & bit0) != 0) > threshold"
_PASS = "pending = pending | levels & ~service"
_PRIORITY = """
source = place >> 2
(bit0 >> source & 1) | (bit1 >> source & 1) << 1 | (bit2 >> source & 1) << 2
"""
_SET_PRIORITY = "\n".join(
    ("source = place >> 2", *(f"bit{n} = bit{n} & ~(1 << source) | (value >> {n} & 1) << source" for n in range(3)))
)
_CLAIM = f"""{_BEST}
pending = pending & ~one
service = service | one
{_SOURCE}
"""
_COMPLETE = f"""
service = service & ~(enable & 1 << (value & {SOURCES}) if value <= {SOURCES} else 0)
{_PASS}
"""
SET_LEVELS = f"levels = value\n{_PASS}"
"""The lines of all sources are as `value` says."""
_FORM = NativeForm(
    names=_WORDS,
    size=4,
    loads={
        **dict.fromkeys(_PRIORITIES, _PRIORITY),
        _OTHERS["PENDING"]: "pending",
        _OTHERS["ENABLE"]: "enable",
        _OTHERS["THRESHOLD"]: "threshold",
        _OTHERS["CLAIM"]: _CLAIM,
    },
    stores={
        **dict.fromkeys(_PRIORITIES, _SET_PRIORITY),
        _OTHERS["ENABLE"]: f"enable = value & {_ENABLED}",
        _OTHERS["THRESHOLD"]: f"threshold = value & {PRIORITY_MASK}",
        _OTHERS["CLAIM"]: _COMPLETE,
    },
    lines=_OUTPUT,
    quiet=frozenset((*_PRIORITIES, *(offset for name, offset in _OTHERS.items() if name != "CLAIM"))),
)
_PENDING, _LEVELS, _SERVICE = (_WORDS.index(name) for name in ("pending", "levels", "service"))


class Plic(RegisterDevice):
    """Sources 1..31 with level-triggered gateways.

    A gateway passes one request at a time: a high level makes its source pending; a claim takes the source into
    service; after completion the level is looked at again. A request that was passed stays when its level falls.
    A claim takes the enabled pending source of highest priority, of equal ones the lowest, whatever the threshold;
    completion of a source that is not enabled is ignored. Native code is made from the same programs (`native`).
    """

    name = "plic"
    size = 0x400_0000
    registers = (
        *(Register(name, offset, mask=PRIORITY_MASK) for offset, name in _PRIORITIES.items()),
        Register("PENDING", _OTHERS["PENDING"], "ro"),
        Register("ENABLE", _OTHERS["ENABLE"], mask=_ENABLED),
        Register("THRESHOLD", _OTHERS["THRESHOLD"], mask=PRIORITY_MASK),
        Register("CLAIM", _OTHERS["CLAIM"]),
    )
    native = _FORM

    def __init__(self) -> None:
        super().__init__()
        self._execute = Programs(_WORDS)
        self.words = self._execute.words

    def __getitem__(self, name: str) -> int:
        offset = next(register.offset for register in self.registers if register.name == name)
        return 0 if name == "CLAIM" else self._execute(_FORM.loads[offset], place=offset)

    @property
    def irq(self) -> bool:
        """The context's interrupt notification: an enabled pending source is above the threshold."""
        return bool(self.words[_PENDING] and self._execute(_OUTPUT))

    def set_levels(self, levels: int) -> None:
        """The interrupt lines of all sources as they are now: bit `source` (1..31) of `levels` is 1 for a high one."""
        if levels != self.words[_LEVELS]:
            self._execute(SET_LEVELS, value=levels)

    def stable(self, offset: int, size: int) -> bool:
        return offset in _FORM.quiet

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """CLAIM shows the source that a claim would take."""
        if not self.accepts(offset, size, False):
            return None
        return self._execute(_BEST + _SOURCE if offset == _OTHERS["CLAIM"] else _FORM.loads[offset], place=offset)

    def read(self, offset: int, size: int, now: int) -> int:
        return self._execute(_FORM.loads[offset], place=offset)

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        self._execute(_FORM.stores[offset], value=value, place=offset)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        registers = {register.name: self[register.name] for register in self.registers}
        return {"registers": registers, "levels": self.words[_LEVELS], "in_service": self.words[_SERVICE]}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "registers", "levels", "in_service")
        with inside("registers"):
            registers = Fields(fields["registers"], *(register.name for register in self.registers))
            content = {register: registers.integer(register.name, 0, WORD) for register in self.registers}
        for register, value in content.items():
            if register.name in ("PENDING", "ENABLE") and value & 1:
                raise StateError("source 0 does not exist", "registers", register.name)
            if register.access == "ro":
                self.words[_PENDING] = value
            elif register.name != "CLAIM":
                self.write(register.offset, 4, value, 0)
        self.words[_LEVELS], self.words[_SERVICE] = (
            fields.integer(name, 0, WORD32) for name in ("levels", "in_service")
        )
