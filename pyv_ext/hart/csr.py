"""Control and status registers for Python: by name, by address, in snapshots (`pyv_ext.machine.csr`)."""

from typing import TYPE_CHECKING, Any

from pyv_ext.errors import PyvExtError
from pyv_ext.hart.pmp import Pmp
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.machine import csr
from pyv_ext.machine.clint import update_deadline
from pyv_ext.machine.pmp import guard
from pyv_ext.machine.slots import Word, word_of
from pyv_ext.machine.state import CBCFE, CBIE, DELEGABLE, ENTRIES, MPP, SUPERVISOR_INTERRUPTS
from pyv_ext.protocols import CsrWindow
from pyv_native.state import Fields, StateError, inside

if TYPE_CHECKING:
    from pyv_ext.hart.hart import Hart

WRAP = 1 << 64
FLOAT = tuple(ADDRESSES[name] for name in ("fflags", "frm", "fcsr"))
"""Registers that are accessible only on a hart with f registers, while FS is not Off."""
_PLAIN = ("mstatus", "mie", "mip", "mtvec", "mscratch", "mepc", "mcause", "mtval", "mcounteren", "menvcfg")
_SUPERVISOR = (
    "medeleg", "mideleg", "stvec", "sscratch", "sepc", "scause", "stval", "scounteren", "senvcfg",
)  # fmt: skip
_COUNTERS = ("mcycle", "minstret")
_PMP = (*(f"pmpcfg{n}" for n in range(ENTRIES // 4)), *(f"pmpaddr{n}" for n in range(ENTRIES)))
WRITABLE = frozenset(
    ADDRESSES[name]
    for name in (
        *("fflags", "frm", "fcsr", *_PLAIN, *_COUNTERS, "mcycleh", "minstreth", "mcountinhibit", *_PMP, *_SUPERVISOR),
        *("sstatus", "sie", "sip", "satp"),
    )
)
"""Addresses of registers with writable bits."""
SUPERVISOR = frozenset(ADDRESSES[name] for name in (*_SUPERVISOR, "sstatus", "sie", "sip", "satp"))
"""Addresses of registers that exist with supervisor mode only."""
REGISTERS = WRITABLE | {
    ADDRESSES[name]
    for name in (
        *("misa", "mstatush", "menvcfgh", "mvendorid", "marchid", "mimpid", "mhartid", "mconfigptr"),
        *("cycle", "cycleh", "time", "timeh", "instret", "instreth", "tselect", "tdata1", "tdata2", "tdata3"),
        *(f"mhpmevent{n}" for n in range(3, 32)),
        *(f"{prefix}hpmcounter{n}{half}" for n in range(3, 32) for prefix in ("", "m") for half in ("", "h")),
    )
}
"""Addresses of registers. Those with both top bits set are read-only to instructions."""
UPPER_HALVES = frozenset(filter(csr.is_upper_half, REGISTERS))
"""Addresses of registers that exist with 32-bit registers only."""


class Csrs:
    """CSRs of one hart."""

    mstatus, mie, mip, mtvec, mscratch, mepc = Word(), Word(), Word(), Word(), Word(), Word()
    mcause, mtval, mcounteren, menvcfg = Word(), Word(), Word(), Word()

    def __init__(self, hart: "Hart") -> None:
        self.hart = hart
        self.x = hart.x
        self.record = hart.record
        self.windows: dict[int, CsrWindow] = {}
        self.pmp = Pmp(hart.records)

    @property
    def present(self) -> frozenset[int]:
        """Addresses of the registers of this hart, those of floating point included."""
        isa = self.hart.isa
        absent_csrs = frozenset() if isa.supervisor_mode else SUPERVISOR
        return REGISTERS - absent_csrs - (UPPER_HALVES if self.record.wide else frozenset())

    def add_window(self, window: CsrWindow) -> None:
        """Assign its addresses to a window; PyvExtError if one of them has a register."""
        for address in sorted(window.addresses):
            if address in REGISTERS or address in self.windows:
                raise PyvExtError(f"CSR {address:#x} exists already: choose another address")
            self.windows[address] = window

    def accessible(self, address: int, write: bool) -> bool:
        """Check whether an instruction may access a register, or that of a window, now; if not, it is illegal."""
        exists = address in self.present or address in self.windows
        return exists and bool(self.hart.records.execute(csr.permits_csr, address, write))

    def read(self, address: int) -> int:
        """Read a register of this hart in its cycle."""
        hart = self.hart
        return hart.records.execute(csr.read_csr, address, hart.cycle, hart.instret) & hart.isa.mask

    def write(self, address: int, value: int) -> None:
        """Write the writable bits of a register, by an instruction that begins in the hart's cycle."""
        hart = self.hart
        hart.records.execute(csr.write_csr, address, value, hart.cycle + hart.timing.csr, hart.instret)

    @property
    def _names(self) -> tuple[str, ...]:
        """Names of the registers that a snapshot stores unchanged."""
        return (*_PLAIN, *_SUPERVISOR) if self.hart.isa.supervisor_mode else _PLAIN

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        state: dict[str, Any] = {name: self.x[word_of(name)] for name in self._names}
        for name in _COUNTERS:
            counter = getattr(self.record, name)
            state[name] = {"base": counter.base % WRAP, "inhibited": bool(counter.inhibited)}
        if self.record.has_compare:
            timer = self._timer
            state["stimecmp"] = [timer.stimecmp % WRAP, int(timer.supervisor_timer), int(self.record.compares)]
        return state | {"pmp": self.pmp.state()}

    @property
    def _timer(self) -> Any:
        """Record of the CLINT."""
        return self.hart.records.machine.clint

    def load_state(self, state: Any) -> None:
        """Restore a state; StateError for bits that no write could have set."""
        compares = ("stimecmp",) if self.record.has_compare else ()
        fields = Fields(state, *self._names, *_COUNTERS, *compares, "pmp")
        words = {name: fields.integer(name, 0, self.hart.isa.mask) for name in self._names}
        machine = self.hart.records.machine
        interrupts = csr.interrupt_bits(machine)
        bits = {"mie": interrupts, "mip": interrupts, "mcounteren": 7, "menvcfg": CBIE | CBCFE}
        bits["mstatus"] = csr.status_fields(machine) | MPP
        if self.hart.isa.supervisor_mode:
            bits |= {"medeleg": DELEGABLE, "mideleg": SUPERVISOR_INTERRUPTS, "scounteren": 7, "senvcfg": CBIE | CBCFE}
        for name, allowed in bits.items():
            if words[name] & ~allowed:
                raise StateError(f"{words[name]:#x} has bits outside {allowed:#x}", name)
        if words["mstatus"] >> 11 & 3 not in self.hart.modes:
            raise StateError(f"{words['mstatus']:#x}: MPP names a mode that this hart does not have", "mstatus")
        for name, value in words.items():
            self.x[word_of(name)] = value
        for name in _COUNTERS:
            counter = getattr(self.record, name)
            with inside(name):
                part = Fields(fields[name], "base", "inhibited")
                counter.base, counter.inhibited = part.integer("base", -WRAP, WRAP) % WRAP, part.flag("inhibited")
        if compares:
            timer = self._timer
            timer.stimecmp, timer.supervisor_timer, self.record.compares = fields.row(
                "stimecmp", (0, WRAP - 1), (0, 1), (0, 1)
            )
            update_deadline(timer)
        fields.load("pmp", self.pmp)
        self.hart.records.execute(guard)
