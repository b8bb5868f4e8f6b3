"""Control and status registers: one table of what exists, and the rules of each.

Source: RISC-V privileged manual, version 1.12. A register is plain (reset value, writable bits), or has functions of
its own. Times: an access happens in an instruction that starts at the hart's `cycle`; a read samples that cycle, a
write takes effect at the end of the instruction's last cycle. Counters have 64 bits, are writable, and each has an
inhibit bit.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_ext.errors import PyvExtError
from pyv_ext.hart.pmp import ENTRIES, Pmp
from pyv_ext.hart.slots import COUNTER_WRITES, FFLAGS, FRM, FS, CsrSlots
from pyv_ext.hart.traps import MACHINE, USER
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.protocols import CsrWindow
from pyv_native.state import Fields, StateError

if TYPE_CHECKING:
    from pyv_ext.hart.hart import Hart


LOW = (1 << 32) - 1
WRAP = (1 << 64) - 1


class Counter:
    """Counts with a number that only rises (cycles, retired instructions), which every call is given as `at`.

    So it costs nothing while the hart runs: its value is computed on a read.
    """

    def __init__(self, x: "memoryview[int]") -> None:
        self._x = x
        self._base = 0
        """What it shows minus `at`, or what it shows while it is inhibited."""
        self.inhibited = False

    def value(self, at: int) -> int:
        return (self._base if self.inhibited else self._base + at) & WRAP

    def set(self, value: int, at: int) -> None:
        """Show `value` at `at`."""
        self._base = value if self.inhibited else value - at
        self._x[COUNTER_WRITES] += 1

    def set_half(self, value: int, before: int, at: int, *, high: bool) -> None:
        """Replace the high or low 32 bits of what it shows at `before`, and show that at `at`."""
        now = self.value(before)
        self.set(value << 32 | now & LOW if high else now & ~LOW | value, at)

    def inhibit(self, inhibited: bool, at: int) -> None:
        """Stop or go on counting from `at`."""
        value = self.value(at)
        self.inhibited = inhibited
        self.set(value, at)

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {"base": self._base, "inhibited": self.inhibited}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "base", "inhibited")
        self._base = fields.integer("base", -WRAP, WRAP)
        self.inhibited = fields.flag("inhibited")
        self._x[COUNTER_WRITES] += 1


MIE, MPIE, MPP, MPRV, TW = 1 << 3, 1 << 7, 3 << 11, 1 << 17, 1 << 21
"""Fields of mstatus."""

CBIE, CBCFE = 3 << 4, 1 << 6
"""Fields of menvcfg: cbo.inval, and cbo.clean and cbo.flush, in user mode."""

FS_SHIFT, SD = 13, 1 << 31
"""More of mstatus: where FS begins, and the summary of what is dirty."""

DIRTY = 3
"""FS once an f register or fcsr may have changed; 0 is Off."""

INTERRUPTS = 1 << 3 | 1 << 7 | 1 << 11
"""The writable bits of mie."""
_ALL = (1 << 32) - 1


class Csr(NamedTuple):
    """How one register is read and written; a register without `write` ignores writes."""

    read: "Callable[[Csrs], int]"
    write: "Callable[[Csrs, int], None] | None" = None


class Csrs(CsrSlots):
    """The registers of one hart. `time(cycle)` is what CSR time shows in a cycle."""

    hart: "Hart"
    mcounteren: int
    menvcfg: int
    mcycle: Counter
    minstret: Counter
    pmp: Pmp

    def __init__(self, hart: "Hart") -> None:
        super().__init__(hart.x)
        self.hart = hart
        self.time: Callable[[int], int] = lambda cycle: cycle
        self.windows: dict[int, CsrWindow] = {}
        self.reset()

    def reset(self) -> None:
        """The state after reset."""
        user = self.hart.isa.user_mode
        self.mstatus = 0 if user else MPP
        self.mie = 0
        self.mip = 0
        self.mtvec = 0
        self.mscratch = 0
        self.mepc = 0
        self.mcause = 0
        self.mtval = 0
        self.mcounteren = 0
        self.menvcfg = 0
        self.mcycle = Counter(self.x)
        self.minstret = Counter(self.x)
        self.pmp = Pmp(self.x)

    def add_window(self, window: CsrWindow) -> None:
        """Give the addresses of `window` to it; PyvExtError if one is taken."""
        for address in sorted(window.addresses):
            if address in REGISTERS or address in self.windows:
                raise PyvExtError(f"CSR {address:#x} exists already: choose another address")
            self.windows[address] = window

    def accessible(self, address: int, write: bool) -> bool:
        """Whether the hart may access the register now; if not, the instruction is illegal."""
        if address not in REGISTERS and address not in self.windows:
            return False
        if write and address >> 10 == 3:
            return False
        if address in FLOAT and not self.hart.x[FS]:
            return False
        priv = self.hart.priv
        if address >> 8 & 3 > priv:
            return False
        counter = _COUNTERS <= address & ~0x80 < _COUNTERS + 32
        return priv == MACHINE or not counter or bool(self.mcounteren >> (address & 31) & 1)

    def read(self, address: int) -> int:
        """The content of a register of the table."""
        return REGISTERS[address].read(self)

    def write(self, address: int, value: int) -> None:
        """Write a register of the table, as far as its bits are writable."""
        write = REGISTERS[address].write
        if write is not None:
            write(self, value)

    def permits_cbo(self, field: int) -> bool:
        """Whether the hart may now execute the cache-block operations that a field of menvcfg governs."""
        return self.hart.priv == MACHINE or bool(self.menvcfg & field)

    def csr_end(self) -> int:
        """The cycle at whose start what the running CSR instruction writes takes effect."""
        return self.hart.cycle + self.hart.timing.csr

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        words: dict[str, Any] = {name: int(getattr(self, name)) for name in _KEPT}
        return words | {part: getattr(self, part).state() for part in _PARTS}

    def load_state(self, state: Any) -> None:
        """Take on a state; StateError for bits that no write could have set."""
        fields = Fields(state, *_KEPT, *_PARTS)
        words = {name: fields.integer(name, 0, _ALL) for name in _KEPT}
        user = self.hart.isa.user_mode
        bits = {"mie": INTERRUPTS, "mip": INTERRUPTS, "mcounteren": 7, "menvcfg": CBIE | CBCFE}
        bits["mstatus"] = MIE | MPIE | MPP | (MPRV | TW if user else 0)
        for name, allowed in bits.items():
            if words[name] & ~allowed:
                raise StateError(f"{words[name]:#x} has bits outside {allowed:#x}", name)
        if words["mstatus"] & MPP not in ((0, MPP) if user else (MPP,)):
            raise StateError(f"{words['mstatus']:#x}: MPP names a mode that this hart does not have", "mstatus")
        for name, value in words.items():
            setattr(self, name, value)
        for part in _PARTS:
            fields.load(part, getattr(self, part))


_KEPT = (
    "mstatus", "mie", "mip", "mtvec", "mscratch", "mepc", "mcause", "mtval", "mcounteren", "menvcfg",
)  # fmt: skip
_PARTS = ("mcycle", "minstret", "pmp")
"""What a snapshot keeps of the registers."""


_COUNTERS = 0xC00


def _plain(name: str, writable: int = _ALL) -> Csr:
    """A register that is an attribute, of which the bits `writable` can change."""

    def write(csrs: Csrs, value: int) -> None:
        setattr(csrs, name, getattr(csrs, name) & ~writable | value & writable)

    return Csr(lambda csrs: getattr(csrs, name), write)


_ZERO = Csr(lambda csrs: 0)


def _read_mstatus(csrs: Csrs) -> int:
    fs = csrs.hart.x[FS]
    return csrs.mstatus | fs << FS_SHIFT | (SD if fs == DIRTY else 0)


def _write_mstatus(csrs: Csrs, value: int) -> None:
    if csrs.hart.isa.floating:
        csrs.hart.x[FS] = value >> FS_SHIFT & DIRTY
    if csrs.hart.isa.user_mode:
        writable = MIE | MPIE | MPRV | TW
        level = MACHINE if value & MPP == MPP else USER
        csrs.mstatus = csrs.mstatus & ~(writable | MPP) | value & writable | level << 11
        csrs.hart.guard()
    else:
        csrs.mstatus = csrs.mstatus & ~(MIE | MPIE) | value & (MIE | MPIE)


def _write_mtvec(csrs: Csrs, value: int) -> None:
    csrs.mtvec = value & ~2  # modes 2 and 3 are reserved


def _write_menvcfg(csrs: Csrs, value: int) -> None:
    if csrs.hart.isa.user_mode and "zicbom" in csrs.hart.isa.extensions:
        reserved = value & CBIE == 2 << 4
        csrs.menvcfg = value & (CBCFE if reserved else CBIE | CBCFE)


def _write_mepc(csrs: Csrs, value: int) -> None:
    csrs.mepc = value & -csrs.hart.isa.alignment


def _read_mcountinhibit(csrs: Csrs) -> int:
    return csrs.mcycle.inhibited | csrs.minstret.inhibited << 2


def _write_mcountinhibit(csrs: Csrs, value: int) -> None:
    """The new bits already govern the last edge of the instruction that writes them."""
    csrs.mcycle.inhibit(bool(value & 1), csrs.csr_end() - 1)
    csrs.minstret.inhibit(bool(value & 4), csrs.hart.instret)


def _mcycle(high: bool) -> Csr:
    shift = 32 if high else 0

    def write(csrs: Csrs, value: int) -> None:
        end = csrs.csr_end()
        csrs.mcycle.set_half(value, end, end, high=high)

    return Csr(lambda csrs: csrs.mcycle.value(csrs.hart.cycle) >> shift & LOW, write)


def _minstret(high: bool) -> Csr:
    shift = 32 if high else 0

    def write(csrs: Csrs, value: int) -> None:
        """A write of either half is a write of the counter, which the writing instruction does not increment."""
        instret = csrs.hart.instret
        csrs.minstret.set_half(value, instret, instret + 1, high=high)

    return Csr(lambda csrs: csrs.minstret.value(csrs.hart.instret) >> shift & LOW, write)


def _pmp_cfg(register: int) -> Csr:
    def write(csrs: Csrs, value: int) -> None:
        csrs.pmp.write_cfg(register, value)
        csrs.hart.guard()

    return Csr(lambda csrs: csrs.pmp.read_cfg(register), write)


def _pmp_addr(region: int) -> Csr:
    def write(csrs: Csrs, value: int) -> None:
        csrs.pmp.write_addr(region, value)
        csrs.hart.guard()

    return Csr(lambda csrs: csrs.pmp.read_addr(region), write)


def _float(mode: bool, flags: bool) -> Csr:
    """fcsr, or one of its fields: the rounding mode above the exceptions."""
    shift = 5 if flags else 0

    def read(csrs: Csrs) -> int:
        x = csrs.hart.x
        return (x[FRM] << shift if mode else 0) | (x[FFLAGS] if flags else 0)

    def write(csrs: Csrs, value: int) -> None:
        x = csrs.hart.x
        if mode:
            x[FRM] = value >> shift & 7
        if flags:
            x[FFLAGS] = value & 31
        x[FS] = DIRTY

    return Csr(read, write)


_BY_NAME: dict[str, Csr] = {
    "fflags": _float(False, True),
    "frm": _float(True, False),
    "fcsr": _float(True, True),
    "mstatus": Csr(_read_mstatus, _write_mstatus),
    "mstatush": _ZERO,
    "misa": Csr(lambda csrs: csrs.hart.isa.misa),
    "mie": _plain("mie", INTERRUPTS),
    "mip": Csr(lambda csrs: csrs.mip),
    "mtvec": Csr(lambda csrs: csrs.mtvec, _write_mtvec),
    "mscratch": _plain("mscratch"),
    "mepc": Csr(lambda csrs: csrs.mepc, _write_mepc),
    "mcause": _plain("mcause"),
    "mtval": _plain("mtval"),
    "mcounteren": _plain("mcounteren", 7),
    "menvcfg": Csr(lambda csrs: csrs.menvcfg, _write_menvcfg),
    "menvcfgh": _ZERO,
    "mcountinhibit": Csr(_read_mcountinhibit, _write_mcountinhibit),
    "mcycle": _mcycle(False),
    "mcycleh": _mcycle(True),
    "minstret": _minstret(False),
    "minstreth": _minstret(True),
    "cycle": Csr(_mcycle(False).read),
    "cycleh": Csr(_mcycle(True).read),
    "time": Csr(lambda csrs: csrs.time(csrs.hart.cycle) & LOW),
    "timeh": Csr(lambda csrs: csrs.time(csrs.hart.cycle) >> 32 & LOW),
    "instret": Csr(_minstret(False).read),
    "instreth": Csr(_minstret(True).read),
    "mhartid": Csr(lambda csrs: csrs.hart.hart_id),
    **dict.fromkeys(("mvendorid", "marchid", "mimpid", "mconfigptr"), _ZERO),
    **dict.fromkeys(("tselect", "tdata1", "tdata2", "tdata3"), _ZERO),
    **{f"pmpcfg{n}": _pmp_cfg(n) for n in range(ENTRIES // 4)},
    **{f"pmpaddr{n}": _pmp_addr(n) for n in range(ENTRIES)},
    **{
        name: _ZERO
        for n in range(3, 32)
        for name in (f"mhpmevent{n}", f"mhpmcounter{n}", f"mhpmcounter{n}h", f"hpmcounter{n}", f"hpmcounter{n}h")
    },
}

REGISTERS: dict[int, Csr] = {ADDRESSES[name]: csr for name, csr in _BY_NAME.items()}
"""Every register that exists, by address. Addresses with both top bits set are read-only to instructions."""

FLOAT = tuple(ADDRESSES[name] for name in ("fflags", "frm", "fcsr"))
"""Those that exist on a hart with f registers only, and are accessible unless FS is Off."""
