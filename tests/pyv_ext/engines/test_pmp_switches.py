"""Programs that give user mode other rights again and again, as an RTOS with a region for each task does."""

from contextlib import contextmanager

import engine_choice
import pytest
from hart_rig import DATA, HANDLER, RAM, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import FORMS, NATIVE_FORMS, Form
from shares import draws
from test_fast_machine import calls

from pyv_ext.engines.fast import native
from pyv_ext.machine.csr import PMPADDR, PMPCFG
from pyv_ext.timing import CoreTiming

ISA = "rv32imacu_zicsr_zifencei"
MPP, MPRV = 0x1800, 1 << 17
ALL_OF_RAM = RAM >> 2 | (0x800_0000 >> 3) - 1
PAGES = [(DATA + 0x1000 * page) >> 2 | 0x1FF for page in range(3)]
"""pmpaddr of pages, NAPOT."""
CFG, ADDR = ["pmpcfg0", "pmpcfg1"], [f"pmpaddr{number}" for number in range(8)]
WRITES = ("csrrw", "csrrs", "csrrc")
BYTES = (0x00, 0x18, 0x19, 0x1B, 0x1F, 0x0B, 0x11, 0x1A, 0x08)
"""Of regions: off, NAPOT, TOR and NA4 with several rights, W without R."""
TIMING = CoreTiming(csr=2, load=2, trap=4, jump=2)


def program(items):
    """Write registers of PMP, go to user mode, load, store and call back."""
    body = [*items, "csrrw x0,mepc,x24", "csrrc x0,mstatus,x22", "mret"]
    user = RAM + 4 * len(body)
    code = ["again:", *body, "lw x5,0(x10)", "addi x5,x5,1", "sw x5,0(x11)", "sw x5,0(x12)", "ecall",
            "addi x6,x6,1", "jal x0,again"]  # fmt: skip
    return "\n".join(code), user, user + 4 * 5


TRAP = "csrrs x30,mcause,x0; csrrs x31,mepc,x0; csrrw x0,mepc,x23; csrrs x0,mstatus,x22; addi x29,x29,1; mret"


@contextmanager
def rig(form, items, values):
    """`values`: of x16 to x19."""
    text, user, back = program(items)
    with pytest.MonkeyPatch.context() as patch:
        form.choose(patch)
        patch.setattr(engine_choice, "NAME", form.engine)
        made = Rig(text, isa=ISA, handler=TRAP, timing=TIMING)
        registers = {10: DATA, 11: DATA + 0x1000, 12: DATA + 0x2000, 22: MPP, 23: back, 24: user, 25: MPRV}
        for number, value in (registers | dict(enumerate(values, 16))).items():
            made.hart.x[number] = value
        csrs = made.hart.csrs
        csrs.mtvec = HANDLER
        csrs.write(PMPADDR + 15, ALL_OF_RAM)
        csrs.write(PMPCFG + 3, 0x1F00_0000)
        yield made


def state(made):
    hart, pmp = made.hart, made.hart.csrs.pmp
    return made.state(), hart.priv, hart.guarded, pmp.cfg, pmp.addr, hart.record.pmp_writes, list(hart.x[:32])


configs = st.lists(st.sampled_from(BYTES), min_size=4, max_size=4)
locked = st.sampled_from((0, 0, 0, 0, 0x80))
words = st.tuples(configs, locked).map(lambda one: int.from_bytes(bytes((*one[0][:3], one[0][3] | one[1])), "little"))
numbers = st.tuples(words, words, st.sampled_from(PAGES), st.sampled_from([*PAGES, (DATA >> 2) + 0x600]))
config_writes = st.tuples(
    st.sampled_from(WRITES), st.sampled_from((0, 16, 17)), st.sampled_from(CFG), st.sampled_from((0, 16, 17))
)
address_writes = st.tuples(
    st.sampled_from(WRITES), st.sampled_from((0, 18, 19)), st.sampled_from(ADDR), st.sampled_from((0, 18, 19))
)
writes = st.one_of(config_writes, address_writes).map(lambda one: "{} x{},{},x{}".format(*one))
others = st.sampled_from(
    (
        "csrrs x0,mstatus,x25",
        "csrrc x0,mstatus,x25",
        "csrrc x0,mstatus,x22",
        "csrrs x0,mstatus,x22",
        "lw x5,0(x11)",
        "sw x5,0(x12)",
    )
)
"""MPRV, MPP, and accesses in machine mode."""
items = st.lists(st.one_of(writes, writes, others), max_size=12)


@settings(max_examples=draws(60), deadline=None, derandomize=True, database=None)
@given(items, numbers, st.lists(st.integers(1, 900), max_size=6))
def test_every_engine_permits_the_same(items, values, strides):
    same_in_all(items, values, strides)


def same_in_all(items, values, strides):
    """What the program comes to."""
    seen = []
    for form in FORMS:
        with rig(form, items, values) as made:
            states = []
            for stride in (*strides, 3000):
                stop = made.engine.run(made.hart.cycle + stride)
                states.append((stop, state(made)))
            seen.append(states)
    assert seen[1:] == [seen[0]] * (len(FORMS) - 1)


SWAP = ["csrrw x18,pmpaddr0,x18", "csrrw x0,pmpcfg0,x16"]
AS_USER = ["csrrc x0,mstatus,x22", "csrrs x0,mstatus,x25", *SWAP, "lw x5,0(x11)", "csrrc x0,mstatus,x25"]


@pytest.mark.parametrize("items", [SWAP, AS_USER, [*SWAP, *AS_USER]], ids=("user", "mprv", "both"))
@pytest.mark.parametrize("strides", [(), (7,) * 60], ids=("whole", "cut"))
def test_a_page_is_forbidden_in_every_other_turn(items, strides):
    """To user mode, and to machine mode with the rights of user mode."""
    same_in_all(items, (0x18, 0, PAGES[1], 0), strides)


TASKS = ["csrrw x0,pmpaddr0,x18", "csrrw x0,pmpcfg0,x16", "csrrw x18,pmpaddr1,x19", "csrrs x19,pmpaddr1,x0"]
"""Each turn forbids the page that the last one has permitted, and the other way round."""


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
def test_a_switch_of_regions_asks_python_once(form):
    pages = [(DATA + 0x3000 + 0x1000 * page) >> 2 | 0x1FF for page in range(2)]
    with rig(form, TASKS, (0x1F18, 0, *pages)) as made:
        made.engine.run(3000)
        turns = made.hart.x[6]
        asked = calls(lambda: made.engine.run(12_000), ("_execute_slow", "_select_space"))
        turns = made.hart.x[6] - turns
        assert turns > 100
        assert asked <= turns + 10  # at mret to user mode


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
def test_more_maps_than_are_kept(form, monkeypatch):
    """Each turn has another one: native code goes on without the tables of those that have left."""
    monkeypatch.setattr(native, "MAX_MAPS", 3)
    body = ["addi x18,x18,1", "csrrw x0,pmpaddr0,x18", "csrrw x0,pmpcfg0,x16", "csrrw x0,mepc,x21", "mret"]
    items = [*body, "lw x5,0(x10)", "addi x17,x17,1", "andi x18,x17,31"]
    ends = []
    for each in (Form("reference"), form):
        with rig(each, items, (0x18, 0, PAGES[1], 0)) as made:
            made.hart.x[21] = RAM + 4 * len(body)
            made.hart.csrs.mstatus |= MPP
            made.engine.run(9000)
            ends.append(state(made))
    assert ends[0] == ends[1]
    assert made.hart.x[6] > 100
