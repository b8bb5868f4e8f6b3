"""Machine mode in native code: it is not left, and what it does equals the reference at any budget."""

import random
import sys

import engine_choice
import pytest
from hart_rig import DATA, HANDLER, RAM, Rig
from native_forms import NATIVE_FORMS

from pyv_ext.engines.fast import engine as fast
from pyv_ext.engines.fast import space
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.timing import CoreTiming

MTI = 1 << 7
TIMING = CoreTiming(load=2, taken=3, csr=2, trap=4, irq=5, jump=2)
SERVE = """
csrrw x30,0x340,x30
csrrs x30,0x342,x0
blt x30,x0,done
csrrs x30,0x341,x0
addi x30,x30,4
csrrw x0,0x341,x30
done:
addi x29,x29,1
csrrw x30,0x340,x30
mret
"""
"""A handler that keeps x30 in mscratch and goes on behind what has trapped."""

BODIES = {
    "ecall": "ecall",
    "illegal": ".word 0x0000007f",
    "faults": "lw x5,1(x10); sh x6,3(x10); lbu x5,0(x0); sw x6,0(x0); amoadd.w x5,x6,(x0); lr.w x7,(x0); "
    "sc.w x7,x6,(x0)",
    "csr": "csrrw x5,0x340,x6; csrrs x7,0x340,x5; csrrci x8,0x305,0; csrrs x9,0x344,x0",
    "status": "csrrci x5,0x300,8; csrrsi x6,0x300,8; csrrw x7,0x304,x5; csrrs x8,0x300,x0",
    "counters": "csrrs x5,0xb00,x0; csrrw x7,0xb02,x6; csrrwi x8,0x320,5; csrrs x9,0xb80,x0; csrrwi x0,0x320,0; "
    "csrrs x5,0xc01,x0; csrrs x7,0x301,x0; csrrs x8,0xc82,x0",
    "fences": "sw x6,0(x10); fence iorw,iorw; fence iorw,ow; lw x5,0(x10); fence o,o; fence w,o",
    "amo": "amoadd.w x5,x6,(x10); amoswap.w.aq x7,x5,(x10); amomaxu.w.rl x8,x5,(x10)",
    "reservation": "lr.w x5,(x10); sc.w x6,x5,(x10); sc.w x7,x5,(x10); lr.w.aq x5,(x10); sw x5,0(x10); "
    "sc.w x6,x7,(x10); lr.w x5,(x10); sw x6,0(x10); sc.w x7,x5,(x10)",
}


def rig(body: str, engine: str, monkeypatch: pytest.MonkeyPatch, lines: list[tuple[int, int]]) -> Rig:
    monkeypatch.setattr(engine_choice, "NAME", engine)
    lines_of = body.replace("; ", "\n")
    made = Rig(f"again:\n{lines_of}\naddi x6,x6,3\njal x0,again", handler=SERVE, timing=TIMING, lines=lines)
    made.hart.x[10] = DATA
    made.hart.csrs.mie, made.hart.csrs.mstatus = MTI, 0x1888
    return made


@pytest.fixture(params=NATIVE_FORMS, ids=str)
def form(request, monkeypatch):
    request.param.choose(monkeypatch)


def calls(run, names) -> int:
    """Count calls of functions of these names meanwhile."""
    count = 0

    def look(frame, event, argument):
        nonlocal count
        count += event == "call" and frame.f_code.co_name in names

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", BODIES)
def test_native_code_is_not_left(name, form, monkeypatch):
    made = rig(BODIES[name], "fast", monkeypatch, [])
    made.engine.run(2000)
    before = made.hart.instret
    assert calls(lambda: made.engine.run(12_000), ("_execute", "_execute_slow", "_execute_instruction")) == 0
    assert made.hart.instret > before + 2000


def test_interrupts_and_wfi_do_not_leave_native_code(form, monkeypatch):
    made = rig("wfi", "fast", monkeypatch, [(cycle, MTI * (cycle // 50 % 2)) for cycle in range(0, 12_000, 50)])
    made.engine.run(2000)
    traps = made.hart.traps
    assert (
        calls(lambda: made.engine.run(12_000), ("_take_interrupt", "_execute_instruction")) <= 8
    )  # where polling is looked for
    assert made.hart.traps > traps + 100


@pytest.mark.parametrize("name", [*BODIES, "all"])
@pytest.mark.parametrize("warm_up", [0, 37])
def test_any_budget_equals_the_reference(name, warm_up, form, monkeypatch):
    monkeypatch.setattr(fast, "WARM_UP", warm_up)
    monkeypatch.setattr(space, "HOT", 6)
    monkeypatch.setattr(space, "WARM", 2)
    body = "\n".join(BODIES.values()) + "\nwfi" if name == "all" else BODIES[name]
    chance = random.Random(len(body) + warm_up)
    times = sorted(chance.sample(range(9000), 80))
    lines = [(cycle, chance.choice((0, MTI))) for cycle in times]
    first, second = (rig(body, engine, monkeypatch, lines) for engine in ("reference", "fast"))
    stop = None
    while first.hart.cycle < 9000 and stop is None:
        until = first.hart.cycle + chance.choice((1, 2, 3, 10, 100, chance.randint(1, 4001)))
        stop = first.engine.run(until)
        assert second.engine.run(until) == stop
        assert second.state() == first.state()
    assert second.engine.state() == first.engine.state()
    assert first.hart.traps > 20


def test_native_code_knows_the_writable_bits_of_csrs(form, monkeypatch):
    for value in (0, 0xFFFF_FFFF, 0x1234_5679, 0x8000_1808):
        for name in ("mtvec", "mscratch", "mepc", "mcause", "mtval", "mip", "mie", "mstatus"):
            made = rig(f"csrrw x5,{ADDRESSES[name]:#x},x6\ncsrrs x7,{ADDRESSES[name]:#x},x0", "fast", monkeypatch, [])
            made.hart.csrs.mstatus = 0x1800
            made.hart.x[6] = value
            old = made.hart.csrs.read(ADDRESSES[name])
            made.engine.run(4)
            other = rig("", "reference", monkeypatch, [])
            other.hart.csrs.mstatus = 0x1800
            other.hart.csrs.write(ADDRESSES[name], value)
            assert (made.hart.x[5], made.hart.x[7]) == (old, other.hart.csrs.read(ADDRESSES[name])), (name, value)


assert RAM < HANDLER


@pytest.mark.parametrize("body", ["amoadd.w x5,x6,(x10)", "lr.w x5,(x10)", "sc.w x5,x6,(x10)"])
def test_atomics_are_aligned_even_where_loads_need_not_be(body, form, monkeypatch):
    states = []
    for engine in ("reference", "fast"):
        monkeypatch.setattr(engine_choice, "NAME", engine)
        made = Rig(f"again:\nlw x7,3(x10)\n{body}\naddi x6,x6,3\njal x0,again", handler=SERVE, misaligned=True)
        made.hart.x[10] = DATA + 2
        made.engine.run(5000)
        assert made.hart.traps > 20
        states.append(made.state())
    assert states[0] == states[1]
