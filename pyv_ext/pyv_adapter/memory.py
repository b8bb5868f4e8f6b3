"""Bus in place of Py-V's memory: RAM of any size at any address, and devices exactly once per executed instruction."""

from pyv.mem import Memory
from pyv.port import Output

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.memory import PAGE_BITS
from pyv_ext.hart.hart import Hart
from pyv_ext.machine.pmp import READ, WRITE

_WORD = 4


class BusMemory(Memory):
    """Memory whose fetches, and loads of RAM, are combinational as in Py-V; all others happen once, in
    `_prepare_next_val`."""

    def __init__(self, hart: Hart, bus: Bus) -> None:
        super().__init__(0)
        self._hart = hart
        self._bus = bus
        ram = self._ram = bus.rams[0]
        self.mem = ram.u8
        self._views = {1: ram.u8, 2: ram.u16, 4: ram.u32}
        self.read_port0.fault_o = Output(bool)
        """The bus has refused the access of this cycle."""
        self.read_port1.fault_o = Output(bool)
        """The fetch address has no memory, or PMP does not permit the fetch."""
        self.cycles = 1
        """Length of this cycle: the core's clock is stopped while it waits for a device."""
        self.has_answered = False
        """Whether `_prepare_next_val` has driven ports."""
        self.has_stored = False
        """Whether the hart has stored to memory in this cycle."""
        self.fetched_word: int | None = None
        """Word at the fetch address as last read: at the fetch, or after a store of the hart."""

    def _read(self, addr: int, w: int) -> int:
        """Read RAM; 0 if only the bus may read, which it does at the end of the cycle."""
        if self._hart.guarded or not self._bus.load_ok[addr >> PAGE_BITS]:
            return 0
        return self._views[w][(addr - self._ram.base) // w]

    def process_read1(self) -> None:
        port = self.read_port1
        word = self.fetched_word = self._word(port.addr_i.read())
        port.fault_o.write(word is None)
        port.rdata_o.write(word or 0)

    def _word(self, address: int) -> int | None:
        ram = self._ram
        if not self._hart.may_fetch(address, _WORD):
            return None
        if ram.base <= address < ram.end and not address & 3:
            return ram.u32[address - ram.base >> 2]
        content = self._bus.peek(address, _WORD)
        return None if content is None else int.from_bytes(content, "little")

    @property
    def fetch_is_stale(self) -> bool:
        """Check whether a device has changed the word that was fetched last."""
        return self._word(self.read_port1.addr_i.read()) != self.fetched_word

    # -- once per cycle ----------------------------------------------------------------------------------------

    @property
    def acts(self) -> bool:
        """Check whether the access of this cycle has effects."""
        return self.write_port.we_i.read() or self._loads_by_bus()

    def _loads_by_bus(self) -> bool:
        port = self.read_port0
        if not port.re_i.read():
            return False
        return self._hart.guarded or not self._bus.load_ok[port.addr_i.read() >> PAGE_BITS]

    def _prepare_next_val(self) -> None:
        super()._prepare_next_val()
        self.cycles, self.has_answered, self.has_stored = 1, False, False
        if self.we_next:
            self._store(self.addr_next, self.w_next, self.wdata_next & (1 << 8 * self.w_next) - 1)
        elif self._loads_by_bus():
            self._load(self.addr_next, self.w_next)

    def _load(self, address: int, size: int) -> None:
        self.has_answered = True
        permitted = self._hart.may_access(address, size, READ)
        answer = self._bus.load(address, size, self._hart.cycle) if permitted else None
        if answer is None:
            self.read_port0.fault_o.write(True)
        else:
            value, self.cycles = answer
            self.read_port0.rdata_o.write(int(value))

    def _store(self, address: int, size: int, value: int) -> None:
        bus, permitted = self._bus, self._hart.may_access(address, size, WRITE)
        if permitted and bus.store_ok[address >> PAGE_BITS]:
            self._views[size][(address - self._ram.base) // size] = value
        else:
            cycles = bus.store(address, size, value, self._hart.cycle) if permitted else None
            if cycles is None:
                self.has_answered = True
                self.read_port0.fault_o.write(True)
                return
            self.cycles = cycles
            if bus.ram_at(address, size) is None:
                return
        self.has_stored = True
        self.fetched_word = self._word(self.read_port1.addr_i.read())

    def _tick(self) -> None:
        """Release the ports that the answer of this cycle drove; stores have happened."""
        self.has_stored = False
        self.read_port0.fault_o.write(False)
