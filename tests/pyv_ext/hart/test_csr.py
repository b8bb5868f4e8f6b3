"""Control and status registers: what is writable, counters, windows, privilege."""

import pytest
from hart_rig import RAM, Rig, assemble

from pyv_ext.errors import PyvExtError
from pyv_ext.hart.csr import FLOAT, REGISTERS, SUPERVISOR
from pyv_ext.isa.csr_names import ADDRESSES, NAMES
from pyv_ext.machine.clint import set_time
from pyv_ext.machine.traps import SUPERVISOR as SUPERVISOR_MODE
from pyv_ext.machine.traps import USER
from pyv_ext.timing import CoreTiming
from pyv_native.state import StateError

ONES = 0xFFFF_FFFF
USER_ISA = "rv32imacu_zicsr_zifencei"

WRITABLE = {
    "mstatus": 0x88,
    "mie": 0x888,
    "mip": 0,
    "mtvec": ONES & ~2,
    "mscratch": ONES,
    "mepc": ONES & ~1,
    "mcause": ONES,
    "mtval": ONES,
    "mcounteren": 7,
    "mcountinhibit": 5,
    "mcycle": ONES,
    "mcycleh": ONES,
    "minstret": ONES,
    "minstreth": ONES,
    **{f"pmpcfg{n}": 0x9F9F_9F9F for n in range(4)},
    **{f"pmpaddr{n}": ONES for n in range(16)},
}
"""The bits that stay when ones are written to zeros; every other register ignores writes."""

PRESENT = REGISTERS - set(FLOAT) - SUPERVISOR
"""What a hart without f registers and supervisor mode has."""
SUPERVISOR_ISA = "rv32imacsu_zicsr_zifencei_zicbom"
SUPERVISOR_WRITABLE = {
    "sstatus": 0x8_0122, "sie": 0, "sip": 0, "stvec": ONES & ~2, "sscratch": ONES, "sepc": ONES & ~1, "scause": ONES,
    "stval": ONES, "scounteren": 7, "senvcfg": 0x70, "satp": 0, "medeleg": 0xB3FF, "mideleg": 0x222,
    "mstatus": 0x7A_19AA, "mie": 0xAAA, "mip": 0x222,
}  # fmt: skip
"""The same with supervisor mode, while nothing is delegated."""

RESET = {"mstatus": 0x1800, "misa": 0x4000_1105}


def write_read(rig, name, value):
    """What a csrrw of `value` and a csrrs of `name` show."""
    rig.bus.poke(RAM, assemble(rig.isa, f"csrrw x0,{name},x1\ncsrrs x2,{name},x0"))
    rig.hart.pc, rig.hart.x[1] = RAM, value
    rig.steps(2)
    return rig.x[2]


@pytest.mark.parametrize("name", sorted(NAMES[address] for address in PRESENT if address >> 10 != 3))
def test_only_writable_bits_change(name):
    rig = Rig()
    for counter, value in (("mcountinhibit", 5), ("mcycle", 0), ("minstret", 0)):
        rig.hart.csrs.write(ADDRESSES[counter], value)
    if name == "mcountinhibit":
        write_read(rig, name, 0)
    base, bits = RESET.get(name, 0), WRITABLE.get(name, 0)
    assert write_read(rig, name, ONES) == base | bits
    if not name.startswith("pmp"):  # their lock bits are set now
        assert write_read(rig, name, 0) == base


@pytest.mark.parametrize("name", SUPERVISOR_WRITABLE)
def test_only_writable_bits_change_with_supervisor_mode(name):
    rig = Rig(isa=SUPERVISOR_ISA)
    assert write_read(rig, name, 0x7A_19AA if name == "mstatus" else ONES) == SUPERVISOR_WRITABLE[name]
    assert write_read(rig, name, 0) == 0


def test_delegated_interrupts_are_those_that_supervisor_mode_sees():
    rig = Rig(isa=SUPERVISOR_ISA)
    for name, value in (("mideleg", 0x202), ("mie", ONES), ("mip", ONES)):
        write_read(rig, name, value)
    assert write_read(rig, "sie", 0x200) == 0x200
    assert write_read(rig, "mie", rig.hart.csrs.read(ADDRESSES["mie"])) == 0xAA8
    assert write_read(rig, "sip", 0) == 0x200  # it clears SSIP only
    assert rig.hart.csrs.read(ADDRESSES["mip"]) == 0x220


def test_every_address_is_readable_or_illegal():
    csrs = Rig().hart.csrs
    for address in range(1 << 12):
        assert csrs.accessible(address, False) == (address in PRESENT)
        assert csrs.accessible(address, True) == (address in PRESENT and address >> 10 != 3)
    assert {"mstatus", "misa", "mie", "mip", "mtvec", "mcycleh", "timeh", "tdata3", "hpmcounter31h", "mconfigptr"} <= {
        NAMES[address] for address in PRESENT
    }


def test_identification_reads():
    rig = Rig("csrrs x1,mhartid,x0\ncsrrs x2,mvendorid,x0\ncsrrs x3,misa,x0\ncsrrs x4,mconfigptr,x0")
    rig.hart.hart_id = 3
    rig.steps(4)
    assert rig.x[1:5] == [3, 0, 0x4000_1105, 0]


def test_csr_instructions_give_the_old_value_and_combine():
    rig = Rig(
        "csrrw x3,mscratch,x1\ncsrrs x4,mscratch,x2\ncsrrc x5,mscratch,x1\ncsrrwi x6,mscratch,21\n"
        "csrrsi x7,mscratch,10\ncsrrci x8,mscratch,1\ncsrrs x9,mscratch,x0\ncsrrw x1,mscratch,x1\ncsrrs x2,mscratch,x0"
    )
    rig.hart.x[1], rig.hart.x[2] = 0xF0, 0x0F
    rig.steps(9)
    assert rig.x[3:10] == [0, 0xF0, 0xFF, 0x0F, 21, 31, 30]
    assert rig.x[1:3] == [30, 0xF0]


def test_set_and_clear_of_nothing_do_not_write():
    rig = Rig("csrrs x1,cycle,x0\ncsrrci x2,instret,0\ncsrrsi x3,time,0\ncsrrs x4,cycle,x5")
    rig.steps(4)
    assert rig.hart.instret == 3
    assert rig.hart.csrs.mcause == 2  # the last names a register, though it holds 0


def test_mepc_holds_aligned_addresses_only():
    assert write_read(Rig(), "mepc", 0x8000_0003) == 0x8000_0002
    assert write_read(Rig(isa="rv32im_zicsr"), "mepc", 0x8000_0003) == 0x8000_0000


# -- counters --------------------------------------------------------------------------------------------------


def test_cycle_and_instret_read_the_start_of_the_instruction():
    rig = Rig(
        "div x1,x1,x1\ncsrrs x2,mcycle,x0\ncsrrs x3,instret,x0\ncsrrs x4,cycle,x0", timing=CoreTiming(div=9, csr=4)
    )
    rig.steps(4)
    assert rig.x[2:5] == [9, 2, 17]


def test_a_write_of_mcycle_takes_effect_at_the_end_of_its_instruction():
    rig = Rig("csrrw x0,mcycle,x1\ncsrrs x2,mcycle,x0\ncsrrs x3,cycle,x0", timing=CoreTiming(csr=4))
    rig.hart.x[1] = 1000
    rig.steps(3)
    assert rig.x[2:4] == [1000, 1004]


def test_a_write_of_minstret_is_read_back_by_the_next_instruction():
    rig = Rig("csrrw x0,minstret,x1\ncsrrs x2,minstret,x0\naddi x5,x5,1\ncsrrs x3,instret,x0")
    rig.hart.x[1] = 1000
    rig.steps(4)
    assert rig.x[2:4] == [1000, 1002]


def test_counters_carry_into_their_high_halves():
    rig = Rig("csrrw x0,mcycleh,x0\ncsrrw x0,mcycle,x1\ncsrrs x2,mcycleh,x0\ncsrrs x3,mcycleh,x0\ncsrrs x4,cycle,x0")
    rig.hart.x[1] = ONES
    rig.steps(5)
    assert rig.x[2:5] == [0, 1, 1]


def test_high_halves_are_written_alone():
    rig = Rig("csrrw x0,minstreth,x1\ncsrrs x2,minstreth,x0\ncsrrs x3,minstret,x0\ncsrrs x4,instreth,x0")
    rig.hart.x[1] = 0xABCD
    rig.steps(4)
    assert rig.x[2:5] == [0xABCD, 1, 0xABCD]


def test_a_write_of_minstreth_suppresses_the_increment():
    rig = Rig("csrrw x0,minstret,x1\ncsrrw x0,minstreth,x1\ncsrrs x2,minstret,x0\ncsrrs x3,minstreth,x0")
    rig.hart.x[1] = ONES
    rig.steps(4)
    assert rig.x[2:4] == [ONES, 0]


def test_inhibited_counters_stand_still_and_can_be_written():
    rig = Rig(
        "csrrwi x0,mcountinhibit,5\naddi x9,x9,1\ncsrrs x1,mcycle,x0\ncsrrs x2,minstret,x0\ncsrrw x0,mcycle,x8\n"
        "csrrs x3,mcycle,x0\ncsrrwi x0,mcountinhibit,0\ncsrrs x4,mcycle,x0\ncsrrs x5,minstret,x0\ncsrrs x6,mcycle,x0"
    )
    rig.hart.x[8] = 500
    rig.steps(10)
    # The new bits govern the edge that ends the instruction which writes them.
    assert rig.x[1:7] == [0, 0, 500, 501, 2, 503]


def test_a_trap_is_counted_in_cycles_but_not_retired():
    rig = Rig("ecall", handler="csrrs x1,mcycle,x0\ncsrrs x2,minstret,x0", timing=CoreTiming(trap=7))
    rig.steps(3)
    assert rig.x[1:3] == [7, 1]


def test_time_comes_from_its_source():
    rig = Rig("addi x1,x1,1\ncsrrs x2,time,x0\ncsrrs x3,timeh,x0")
    set_time(rig.clock.machine.clint, 0x11_0000_0020, 0)
    rig.steps(3)
    assert rig.x[2:4] == [0x21, 0x11]


# -- windows ---------------------------------------------------------------------------------------------------


class Window:
    addresses = frozenset({0x7C0, 0xFC0})

    def __init__(self):
        self.value = 5
        self.log = []

    def read(self, address, now):
        self.log.append(("read", address, now))
        return self.value

    def write(self, address, value, now, written):
        self.log.append(("write", address, value, now, written))
        self.value = value


@pytest.mark.parametrize(
    ("instruction", "log", "value"),
    [
        ("csrrw x2,0x7c0,x1", [("read", 0x7C0, 3), ("write", 0x7C0, 0x66, 3, 0x66)], 0x66),
        ("csrrw x0,0x7c0,x1", [("write", 0x7C0, 0x66, 3, 0x66)], 0x66),
        ("csrrs x0,0x7c0,x1", [("read", 0x7C0, 3), ("write", 0x7C0, 0x67, 3, 0x66)], 0x67),
        ("csrrc x2,0x7c0,x1", [("read", 0x7C0, 3), ("write", 0x7C0, 1, 3, 0)], 1),
        ("csrrsi x2,0x7c0,8", [("read", 0x7C0, 3), ("write", 0x7C0, 13, 3, 8)], 13),
        ("csrrs x2,0xfc0,x0", [("read", 0xFC0, 3)], 5),
        ("csrrw x2,0xfc0,x0", [], 5),
    ],
)
def test_a_window_acts_in_the_last_cycle(instruction, log, value):
    rig = Rig(instruction, timing=CoreTiming(csr=4), lines=[(3, 8), (4, 0)])
    window = Window()
    rig.hart.csrs.add_window(window)
    rig.hart.x[1] = 0x66
    rig.steps(1)
    assert (window.log, window.value) == (log, value)
    assert rig.hart.x[2] == (5 if "x2" in instruction and log else 0)
    assert rig.lines.log == ([("advance", 3)] if log else [])


@pytest.mark.parametrize(
    ("instruction", "changes"),
    [("csrrs x2,0xfc0,x0", 0), ("csrrs x2,0x7c0,x0", 1), ("csrrw x2,0x7c0,x1", 1), ("csrrw x0,0x7c0,x1", 1)],
)
def test_the_clock_is_not_told_of_a_read_that_changes_nothing(instruction, changes):
    class Declared(Window):
        def stable(self, address):
            return address == 0xFC0

    rig = Rig(instruction)
    rig.hart.csrs.add_window(Declared())
    before = rig.bus.clock.changes
    rig.steps(1)
    assert rig.bus.clock.changes - before == changes


def test_window_addresses_must_be_free():
    rig = Rig()
    rig.hart.csrs.add_window(Window())
    with pytest.raises(PyvExtError, match="CSR 0x7c0 exists already: choose another address"):
        rig.hart.csrs.add_window(Window())
    taken = Window()
    taken.addresses = frozenset({ADDRESSES["mstatus"]})
    with pytest.raises(PyvExtError, match="CSR 0x300 exists already"):
        rig.hart.csrs.add_window(taken)


# -- user mode -------------------------------------------------------------------------------------------------


def in_user_mode(program):
    rig = Rig(program, isa=USER_ISA)
    rig.hart.priv = USER
    return rig


def test_mstatus_mpp_is_legalized_with_user_mode_only():
    rig = Rig(isa=USER_ISA)
    for written, read in ((0x1800, 0x1800), (0x800, 0), (0x1000, 0), (0, 0)):
        assert write_read(rig, "mstatus", written) == read
    assert write_read(rig, "mstatus", ONES) == 0x0022_1888
    assert write_read(Rig(), "mstatus", 0) == 0x1800


def test_ecall_and_mret_move_between_levels():
    rig = in_user_mode("ecall")
    rig.hart.csrs.mstatus = 8
    rig.steps(1)
    assert (rig.hart.priv, rig.hart.csrs.mcause, rig.hart.csrs.mstatus) == (3, 8, 0x80)
    rig.bus.poke(rig.hart.pc, assemble(rig.isa, "mret"))
    rig.steps(1)
    assert (rig.hart.priv, rig.hart.pc, rig.hart.csrs.mstatus) == (USER, RAM, 0x88)


@pytest.mark.parametrize("instruction", ["mret", "csrrs x1,mstatus,x0", "csrrs x1,cycle,x0", "csrrs x1,hpmcounter3,x0"])
def test_what_user_mode_may_not_do_is_illegal(instruction):
    rig = in_user_mode(instruction)
    rig.steps(1)
    assert (rig.hart.csrs.mcause, rig.hart.priv) == (2, 3)


def test_mcounteren_opens_counters_to_user_mode():
    rig = in_user_mode("csrrs x1,instreth,x0\ncsrrs x1,cycle,x0")
    rig.hart.csrs.mcounteren = 4
    rig.steps(2)
    assert (rig.hart.instret, rig.hart.csrs.mepc) == (1, RAM + 4)


@pytest.mark.parametrize(
    ("instruction", "menvcfg", "legal"),
    [
        ("cbo.clean", 0x30, False),
        ("cbo.clean", 0x40, True),
        ("cbo.flush", 0x30, False),
        ("cbo.flush", 0x40, True),
        ("cbo.inval", 0x40, False),
        ("cbo.inval", 0x10, True),
        ("cbo.inval", 0x30, True),
    ],
)
def test_menvcfg_opens_cache_block_operations_to_user_mode(instruction, menvcfg, legal):
    rig = Rig(f"csrrw x0,menvcfg,x1\n{instruction} (x2)\n{instruction} (x2)", isa=USER_ISA + "_zicbom")
    rig.hart.x[1], rig.hart.x[2] = menvcfg, RAM
    rig.steps(2)
    assert rig.hart.instret == 2  # machine mode needs no permission
    rig.hart.priv = USER
    rig.steps(1)
    assert rig.hart.csrs.mcause == (0 if legal else 2)


def test_menvcfg_is_legalized():
    rig = Rig(isa=USER_ISA + "_zicbom")
    for written, read in ((ONES, 0x70), (0x20, 0), (0x61, 0x40), (0x10, 0x10)):
        assert write_read(rig, "menvcfg", written) == read
    assert write_read(Rig(isa=USER_ISA), "menvcfg", ONES) == 0


def test_mstatus_tw_makes_wfi_illegal_in_user_mode():
    rig = in_user_mode("wfi")
    rig.hart.csrs.mstatus = 1 << 21
    rig.steps(1)
    assert rig.hart.csrs.mcause == 2


def test_interrupts_are_taken_in_user_mode_whatever_the_enable():
    rig = in_user_mode("addi x1,x1,1")
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = 128, 0
    rig.hart.csrs.mip = 128
    rig.steps(1)
    assert (rig.hart.csrs.mcause, rig.x[1]) == (0x8000_0007, 0)


# -- physical memory protection registers ----------------------------------------------------------------------


def test_locked_pmp_registers_keep_their_content():
    rig = Rig()
    write_read(rig, "pmpaddr1", 0x100)
    write_read(rig, "pmpaddr2", 0x200)
    assert write_read(rig, "pmpcfg0", 0x008F_0000) == 0x008F_0000  # region 2: locked, top of range
    assert write_read(rig, "pmpcfg0", 0x1F1F_1F1F) == 0x1F8F_1F1F
    assert write_read(rig, "pmpaddr2", 7) == 0x200
    assert write_read(rig, "pmpaddr1", 7) == 0x100
    assert write_read(rig, "pmpaddr3", 7) == 7


def test_write_without_read_is_reserved_in_pmpcfg():
    assert write_read(Rig(), "pmpcfg3", 0x0602_0302) == 0x0400_0300


def test_a_snapshot_has_supervisor_mode():
    rig, other = Rig(isa=SUPERVISOR_ISA), Rig(isa=SUPERVISOR_ISA)
    for name in SUPERVISOR_WRITABLE:
        write_read(rig, name, 0x1122)
    rig.hart.priv = SUPERVISOR_MODE
    state = rig.hart.state()
    other.hart.load_state(state)
    assert other.hart.state() == state
    assert other.hart.csrs.record.stvec == 0x1120
    state["csrs"]["medeleg"] = 1 << 11
    with pytest.raises(StateError, match=r"medeleg: 0x800 has bits outside 0xb3ff"):
        other.hart.load_state(state)
