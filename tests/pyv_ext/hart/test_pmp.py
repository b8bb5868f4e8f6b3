"""Physical memory protection: the rules against a literal reading of the manual, and what engines make of them.

QEMU and Spike check the same on random programs (tests/oracles: the item `protect`).
"""

from typing import Any

import pytest
from hart_rig import DATA, HANDLER, RAM, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.hart.pmp import Pmp
from pyv_ext.machine.csr import PMPADDR, PMPCFG
from pyv_ext.machine.pmp import ALL, EXECUTE, READ, WRITE
from pyv_ext.machine.state import ENTRIES
from pyv_ext.machine.traps import MACHINE, USER, Cause
from pyv_ext.protocols import CustomInstruction, Operands

ISA = "rv32imacu_zicsr_zifencei_zicbom"
R, W, X, RWX = READ, WRITE, EXECUTE, ALL
TOR, NA4, NAPOT, LOCK = 0x08, 0x10, 0x18, 0x80
EVERYWHERE = 0xFFFF_FFFF


# -- the rules -------------------------------------------------------------------------------------------------


def matches(pmp: Pmp, region: int, address: int) -> bool:
    """Whether the byte is in the region, bit by bit as table "NAPOT range encoding" and the text on TOR say."""
    mode, value = pmp.cfg[region] & 0x18, pmp.addr[region]
    if mode == TOR:
        low = pmp.addr[region - 1] if region else 0
        return low <= address >> 2 < value
    if mode == NA4:
        return address >> 2 == value
    if mode == NAPOT:
        ones = len(f"{value:033b}") - len(f"{value:033b}".rstrip("1"))
        return address >> 3 + ones == value << 2 >> 3 + ones
    return False


def permitted(pmp: Pmp, address: int, right: int, mode: int) -> bool:
    for region in range(ENTRIES):
        if matches(pmp, region, address):
            free = mode == MACHINE and not pmp.cfg[region] & LOCK
            return free or bool(pmp.cfg[region] & right)
    return mode == MACHINE


NEAR = st.integers(0, 24).map(lambda step: 0x2000_0000 + step)
ADDRESSES = NEAR | st.sampled_from([0, 0x2000_0007, 0x2000_03FF, 0x3FFF_FFFF, 0x4000_0000, 0x7FFF_FFFF, EVERYWHERE])
CONFIGS = st.sampled_from([0, TOR, NA4, NAPOT]).flatmap(
    lambda mode: st.sampled_from([0, 1, 3, 4, 5, 7]).map(lambda rights: mode | rights)
)
REGIONS = st.lists(st.tuples(st.integers(0, ENTRIES - 1), ADDRESSES, CONFIGS, st.booleans()), max_size=8)


@settings(max_examples=draws(300), deadline=None)
@given(REGIONS, st.lists(st.integers(-8, 120), max_size=12))
def test_rights_are_those_of_the_first_region_that_matches(
    regions: list[tuple[int, int, int, bool]], offsets: list[int]
) -> None:
    csrs = Rig(isa=ISA).hart.csrs
    pmp = csrs.pmp
    for region, address, config, locked in regions:
        csrs.write(PMPADDR + region, address)
        keep = csrs.read(PMPCFG + region // 4) & ~(0xFF << 8 * (region % 4))
        csrs.write(PMPCFG + region // 4, keep | (config | LOCK * locked) << 8 * (region % 4))
    addresses = [0, 0xFFFF_FFFC, *(0x8000_0000 + offset for offset in offsets)]
    for mode in (USER, MACHINE):
        for address in addresses:
            for right in (R, W, X):
                assert pmp.allows(address, 1, right, mode) == permitted(pmp, address, right, mode)
            spanned = [permitted(pmp, address + n & EVERYWHERE, R, mode) for n in range(4)]
            if address < EVERYWHERE - 4:
                assert pmp.allows(address, 4, R, mode) == all(spanned)
        free = all(permitted(pmp, address, right, mode) for address in addresses for right in (R, W, X))
        assert free or pmp.restricts(mode)


def test_nothing_restricts_machine_mode_and_all_restricts_user_mode_at_reset() -> None:
    csrs = Rig(isa=ISA).hart.csrs
    pmp = csrs.pmp
    assert not pmp.restricts(MACHINE)
    assert pmp.restricts(USER)
    csrs.write(PMPADDR + 3, EVERYWHERE)
    csrs.write(PMPCFG, (NAPOT | RWX) << 24)
    assert not pmp.restricts(USER)


# -- engines ---------------------------------------------------------------------------------------------------

each_engine = pytest.mark.usefixtures("each_engine")


def protected(program: str, *regions: tuple[int, int], mode: int = USER, **given: Any) -> Rig:
    """A rig in a privilege mode, with (pmpcfg byte, pmpaddr) of the first regions, after them all of RAM but data."""
    rig = Rig(program, isa=ISA, **given)
    csrs = rig.hart.csrs
    last = (NAPOT | RWX, RAM >> 2 | (0x4000 >> 3) - 1)
    entries = [*regions, last, *[(0, 0)] * (ENTRIES - 1 - len(regions))]
    csrs.pmp.load_state({"cfg": bytes(config for config, _ in entries), "addr": [address for _, address in entries]})
    csrs.mtvec = HANDLER
    rig.hart.priv = mode
    rig.hart.guard()
    return rig


def trap_of(rig: Rig, cycles: int = 60) -> tuple[int, int, int]:
    """(cause, mtval, mepc) of the first trap."""
    while not rig.hart.traps:
        assert rig.engine.run(rig.hart.cycle + 1) is None
        assert rig.hart.cycle < cycles
    csrs = rig.hart.csrs
    return csrs.mcause, csrs.mtval, csrs.mepc


ACCESSES = {
    "lw x5,0(x2)": (R, Cause.LOAD_FAULT),
    "sb x5,3(x2)": (W, Cause.STORE_FAULT),
    "lr.w x5,(x2)": (R, Cause.LOAD_FAULT),
    "sc.w x5,x6,(x2)": (W, Cause.STORE_FAULT),
    "amoadd.w x5,x6,(x2)": (R | W, Cause.STORE_FAULT),
    "cbo.clean (x2)": (R, Cause.STORE_FAULT),
}


@each_engine
@pytest.mark.parametrize("rights", [0, R, R | W, RWX])
@pytest.mark.parametrize("access", ACCESSES)
def test_accesses_in_user_mode(access: str, rights: int) -> None:
    needed, cause = ACCESSES[access]
    rig = protected(f"addi x7,x0,1\n{access}\naddi x7,x7,1\necall", (NA4 | rights, DATA >> 2))
    rig.hart.csrs.menvcfg = 0x70
    rig.hart.x[2] = DATA
    before = rig.bus.peek(DATA, 4)
    trap = trap_of(rig)
    if rights & needed == needed:
        assert trap[0] == Cause.ECALL_USER
        assert rig.hart.x[7] == 2
    else:
        assert trap == (cause, DATA + (3 if access.startswith("sb") else 0), RAM + 4)
        assert rig.hart.x[7] == 1
        assert rig.bus.peek(DATA, 4) == before


@each_engine
def test_a_fetch_that_is_not_permitted_traps_at_its_first_halfword_that_is_not() -> None:
    rig = protected("addi x5,x0,1\naddi x6,x0,2", (NA4 | R | W, RAM + 4 >> 2))
    assert trap_of(rig) == (Cause.FETCH_FAULT, RAM + 4, RAM + 4)
    half = protected("c.mv x5,x6\naddi x6,x0,2", (NA4 | R | W, RAM + 4 >> 2))
    assert trap_of(half) == (Cause.FETCH_FAULT, RAM + 4, RAM + 2)


@each_engine
def test_illegal_instructions_are_fetched_first() -> None:
    assert trap_of(protected(".word 0xffffffff"))[0] == Cause.ILLEGAL
    assert trap_of(protected(".word 0xffffffff", (NA4 | R, RAM >> 2)))[0] == Cause.FETCH_FAULT


@each_engine
def test_misaligned_accesses_trap_for_that_first_or_need_all_their_words() -> None:
    regions = (NA4 | R, DATA >> 2), (NA4, DATA + 4 >> 2)
    program = "lw x5,0(x2)\necall"
    for misaligned, address, cause in (
        (False, DATA + 2, Cause.MISALIGNED_LOAD),
        (True, DATA + 2, Cause.LOAD_FAULT),
        (True, DATA, Cause.ECALL_USER),
    ):
        rig = protected(program, *regions, misaligned=misaligned)
        rig.hart.x[2] = address
        assert trap_of(rig)[0] == cause


@each_engine
def test_locked_regions_bind_machine_mode() -> None:
    program = "sw x5,0(x2)\nebreak"
    for lock, cause in ((0, Cause.BREAKPOINT), (LOCK, Cause.STORE_FAULT)):
        rig = protected(program, (NA4 | R | lock, DATA >> 2), mode=MACHINE)
        rig.hart.x[2] = DATA
        assert rig.hart.guarded is bool(lock)
        assert trap_of(rig)[0] == cause


@each_engine
def test_mprv_makes_loads_and_stores_those_of_mpp() -> None:
    program = "csrrs x0,mstatus,x3\nlw x5,0(x2)\nebreak"
    for mpp, cause in ((0, Cause.LOAD_FAULT), (3 << 11, Cause.BREAKPOINT)):
        rig = protected(program, (NA4, DATA >> 2), mode=MACHINE)
        rig.hart.x[2], rig.hart.x[3] = DATA, 1 << 17 | mpp
        assert trap_of(rig)[0] == cause


@each_engine
def test_going_to_and_fro_between_modes() -> None:
    """User mode may not touch the data, its caller may; each return to machine mode is free again."""
    user = RAM + 24
    program = f"li x1,{user:#x}\ncsrrw x0,mepc,x1\nli x4,100\nmret\nsw x4,0(x2)\necall"
    handler = f"""
        csrrs x6,mcause,x0
        add x8,x8,x6
        sw x8,4(x2)
        addi x4,x4,-1
        beq x4,x0,done
        li x1,{user:#x}
        csrrw x0,mepc,x1
        mret
    done:
        jal x0,done
    """
    rig = protected(program, (NAPOT | R, DATA >> 2), mode=MACHINE, handler=handler)
    rig.hart.x[2] = DATA
    rig.engine.run(5000)
    assert rig.hart.traps == 100
    assert rig.bus.peek(DATA, 8) == bytes(4) + (100 * Cause.STORE_FAULT).to_bytes(4, "little")


@each_engine
def test_custom_instructions_read_what_loads_may() -> None:
    seen: list[bytes | None] = []

    def handler(operands: Operands) -> int:
        seen.append(operands.load(DATA, 4))
        return 0

    custom = [CustomInstruction("look", 0x5C00000B, 0xFE00707F, "rd,rs1,rs2", handler)]
    for rights in (R, 0):
        rig = protected("look x5,x0,x0\necall", (NA4 | rights, DATA >> 2), custom=custom)
        assert trap_of(rig)[0] == Cause.ECALL_USER
    assert seen == [bytes(4), None]
