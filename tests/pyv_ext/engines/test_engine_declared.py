"""Custom instructions that say what they compute or touch: the same on every engine, and faster."""

import random
import re

import engine_choice
import numpy as np
import pytest
from hart_rig import PORT, RAM, Rig, assemble
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import NATIVE_FORMS
from work_count import calls

from pyv_ext.errors import PyvExtError
from pyv_ext.isa import Isa
from pyv_ext.isa.expressions import evaluator
from pyv_ext.protocols import CustomInstruction, Retry, Stall, Trap, Value
from pyv_ext.timing import CoreTiming

MATCH, MASK = 0x5C00_000B, 0xFE00_707F
each_engine = pytest.mark.usefixtures("each_engine")

OPERANDS = st.sampled_from(["a", "b", "pc", "1", "0x80000000", "M", "SHIFT", "BYTES"])


def _grown(inner):
    register = inner.map(lambda text: f"({text}) & M")
    amount = inner.map(lambda text: f"({text}) & SHIFT")
    signed = register.map(lambda text: f"S({text})")
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "&", "|", "^"]), inner),
        st.builds("({} {} ({}))".format, inner, st.sampled_from(["<<", ">>"]), amount),
        st.builds("({} >> ({}))".format, signed, amount),
        st.builds("{}({})".format, st.sampled_from(["CLZ", "CTZ", "CPOP", "BSWAP", "S"]), register),
        st.builds("{}({}, {})".format, st.sampled_from(["QUOT", "REM"]), inner, inner),
        st.builds("({} if ({}) {} ({}) else {})".format, inner, register, st.sampled_from(["<", "==", "!=", ">=", ">"]),
                  register, inner),
        st.builds("({} < {})".format, signed, signed),
        st.builds("~({})".format, inner),
    )  # fmt: skip


EXPRESSIONS = st.recursive(OPERANDS, _grown, max_leaves=8)


def computing(expr: str, **options: object) -> CustomInstruction:
    return CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", expr=expr, **options)


def accepted(expr: str) -> bool:
    """What is not accepted says why."""
    try:
        Isa("rv32i", [computing(expr)])
    except PyvExtError as error:
        assert str(error).startswith("custom instruction own: expr ") and "\n" not in str(error)
        return False
    return True


@each_engine
@settings(max_examples=8, deadline=None)
@given(exprs=st.lists(EXPRESSIONS, min_size=40, max_size=40), seed=st.integers(0, 1 << 32))
def test_an_accepted_expression_is_the_same_on_every_engine(exprs, seed):
    chance = random.Random(seed)
    edges = (0, 1, 31, 32, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
    exprs = [expr for expr in exprs if accepted(expr)][:20]
    rows = [
        CustomInstruction(f"own{number}", MATCH & ~(0x7F << 25) | number << 25, MASK, "rd,rs1,rs2", expr=expr)
        for number, expr in enumerate(exprs)
    ]
    program = "".join(f"own{number} x{number + 8},x5,x6\n" for number in range(len(rows)))
    rig = Rig(f"{program} jal x0,{-4 * len(rows)}", custom=rows)
    for _ in range(8):
        a, b = (chance.choice((*edges, chance.getrandbits(32))) for _ in "ab")
        rig.hart.x[5], rig.hart.x[6] = a, b
        rig.engine.run(rig.hart.cycle + len(rows) + 1)
        assert rig.hart.pc == RAM
        for number, expr in enumerate(exprs):
            assert rig.x[number + 8] == evaluator(f"({expr}) & M", 32)(a, b, RAM + 4 * number, 0), expr


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        ("a * a * b >> 3", "may exceed 64 bits"),
        ("a << b", "shifts by 0..31 only"),
        ("a + b < pc", "must be a register value: end it with & M"),
        ("S(a) < b", r"compare registers, or S\(\) with S\(\)"),
        ("a / b", "no such operator"),
        ("old", "is not in the dialect"),
        ("a if b else 1", "is not in the dialect"),
        ("__import__('os')", "is not in the dialect"),
        ("a +", "is no expression"),
        ("1 << 40", "must be|shifts|register"),
        ("CLZ(a + b)", "must be a register value"),
    ],
)
def test_what_is_not_the_same_everywhere_is_refused(expr, why):
    with pytest.raises(PyvExtError, match=why):
        Isa("rv32im", [computing(expr)])


def test_a_declaration_is_complete_or_refused():
    with pytest.raises(PyvExtError, match="neither a handler nor an expr"):
        Isa("rv32im", [CustomInstruction("own", MATCH, MASK, "rd,rs1")])
    with pytest.raises(PyvExtError, match="drop one of them"):
        Isa("rv32im", [computing("a", handler=lambda operands: 0)])
    with pytest.raises(PyvExtError, match="add rd to its syntax"):
        Isa("rv32im", [CustomInstruction("own", MATCH, MASK, "rs1", expr="a")])
    with pytest.raises(PyvExtError, match="is not in the dialect"):
        Isa("rv32im", [CustomInstruction("own", MATCH, MASK, "rd,rs1", expr="a + b")])


@each_engine
@pytest.mark.parametrize("issue", [None, 0, 5])
def test_it_takes_its_issue_and_may_have_an_immediate(issue):
    row = CustomInstruction("own", 0x0000_702B, 0x707F, "rd,rs1,imm", expr="a + b", issue=issue)
    rig = Rig("addi x5,x0,7\nown x7,x5,-3\nspin:; jal x0,spin", custom=[row], timing=CoreTiming(custom=3, jump=100))
    rig.engine.run(2)
    assert (rig.x[7], rig.hart.cycle) == (4, 1 + {None: 3, 0: 1, 5: 5}[issue])


TIMED = ["3", "32 - CLZ(b)", "(a + b) & 7", "5 if a < b else 0", "CPOP(a ^ b) >> 1", "65535 if a == 40 else 2"]


@each_engine
@pytest.mark.parametrize("cycles", [3, *TIMED])
@pytest.mark.parametrize("issue", [None, 0, 4])
def test_it_takes_the_cycles_that_it_declares(cycles, issue):
    """In a hot loop, whose result they change, and cut at any point; mcycle is the judge."""
    row = computing("(a * 5 + b) & M", cycles=cycles, issue=issue)
    program = """
        csrrs x10,mcycle,x0
        loop:
        own x7,x7,x5
        xor x8,x8,x7
        addi x5,x5,1
        bne x5,x6,loop
        own x5,x5,x5
        csrrs x11,mcycle,x0
        spin:
        jal x0,spin
    """
    rig = Rig(program, custom=[row], timing=CoreTiming(custom=2, branch=5, taken=3))
    rig.hart.x[6] = 300
    at = 0
    while not rig.x[11]:
        at += 97
        rig.engine.run(at)
    cost, extra = {None: 2, 0: 1, 4: 4}[issue], evaluator(str(cycles), 32)
    expected, a, mixed = 1, 0, 0
    for b in range(300):
        expected += cost + extra(a, b, 0, 0) + 1 + 1 + (3 if b < 299 else 5)
        a = (a * 5 + b) & 0xFFFFFFFF
        mixed ^= a
    expected += cost + extra(300, 300, 0, 0)
    assert (rig.x[8], rig.x[5], rig.x[11] - rig.x[10]) == (mixed, 1800, expected)


def test_a_program_whose_instruction_has_changed_since_its_last_run(monkeypatch):
    """What that run has translated is a hint, and does not fit an instruction that ends its block."""
    monkeypatch.setattr(engine_choice, "NAME", "fast")
    rounds = []
    for extra in (0, "3 if a == 0 else 0", 0):
        rig = Rig("loop:; own x7,x0,x5; addi x5,x5,1; jal x0,loop", custom=[computing("(a + b) & M", cycles=extra)])
        rig.engine.run(600_000)
        rounds.append(rig.x[5])
    assert rounds == [200_000, 100_000, 200_000]


@pytest.mark.parametrize(
    ("cycles", "why"),
    [
        (-1, "cycles '-1': may be -1: must be 0..65535"),
        (65536, "cycles '65536': may be 65536: must be 0..65535"),
        ("a", "may be 4294967295: must be 0..65535, by & or >> for example"),
        ("CLZ(a) - 1", "may be -1: must be 0..65535"),
        ("old & 3", "'old' is not in the dialect here"),
        ("3 +", "is no expression"),
    ],
)
def test_cycles_that_cannot_be_are_refused(cycles, why):
    with pytest.raises(PyvExtError, match=re.escape(why)):
        Isa("rv32im", [computing("a", cycles=cycles)])


def test_a_handler_declares_no_cycles():
    with pytest.raises(PyvExtError, match="own: cycles goes with expr; a handler returns Value"):
        Isa("rv32im", [CustomInstruction("own", MATCH, MASK, "rd", lambda operands: 1, cycles=2)])


@each_engine
@pytest.mark.parametrize("touches", ["devices", "memory", "nothing"])
def test_what_it_touches_changes_no_result(touches):
    """The program also uses a device and is interrupted."""

    def handler(operands):
        return Value(operands.rs1 + 3, 2)

    row = CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", handler, touches=touches)
    program = f"li x5,{PORT:#x}; loop:; own x7,x7,x0; sw x7,4(x5); lw x8,0(x5); jal x0,loop"
    rig = Rig(program, handler="mret", custom=[row], lines=[(n, (n & 1) * 128) for n in range(3, 90)])
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = 128, 8
    rig.engine.run(200)
    other = Rig(program, handler="mret", custom=[CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", handler)],
                lines=[(n, (n & 1) * 128) for n in range(3, 90)])  # fmt: skip
    other.hart.csrs.mie, other.hart.csrs.mstatus = 128, 8
    other.engine.run(200)
    assert rig.state() == other.state()


def calls_of(row: CustomInstruction, turns: int, warm: int = 50_000) -> int:
    """Python functions that the engine `fast` calls for four times so many executions, once it is warm."""
    rig = Rig("own x7,x5,x6; " * 4 + "addi x5,x5,-1; bne x5,x0,-20", custom=[row])
    rig.hart.x[5] = 1 << 30
    rig.engine.run(warm)
    end = rig.hart.cycle + 6 * turns
    counted = calls(lambda: rig.engine.run(end))
    assert rig.hart.cycle == end
    return counted


def test_what_touches_nothing_is_cheap(monkeypatch):
    """An expression is native code, which makes no calls; a handler that touches no device asks none of them."""
    monkeypatch.setattr(engine_choice, "NAME", "fast")

    for cycles in (0, "a & 0"):
        expression = computing("(a * 3 + b) & M", cycles=cycles)
        assert calls_of(expression, 20_000, 200_000) < 200, "80,000 executions"

    def per_execution(touches: str) -> float:
        row = CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", lambda operands: 1, touches=touches)
        return (calls_of(row, 500) - calls_of(row, 250)) / 1000

    assert 1 <= per_execution("nothing") < per_execution("devices")


# -- handlers that native code calls -----------------------------------------------------------------------------------


def moods(asked: list[tuple[object, ...]]):
    """Every outcome in turn."""
    outcomes = (
        lambda o: o.rs1 + o.rs2 + 1,
        lambda o: Value(o.now, 4),
        lambda o: -1,
        lambda o: Stall(o.now + 9),
        lambda o: Retry(3),
        lambda o: Trap(24, o.word),
        lambda o: True,
        lambda o: Value(1 << 40 | 7, 0),
        lambda o: Value(5, 1 << 31),
        lambda o: np.int64(o.rs1),
    )

    def handler(operands):
        mood = len(asked) * 7 % len(outcomes)
        asked.append((operands.pc, operands.word, operands.rs1, operands.rs2, operands.now, operands.resumed, mood))
        return outcomes[mood](operands)

    return handler


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
@pytest.mark.parametrize(("issue", "touches"), [(None, "nothing"), (0, "memory"), (6, "memory")])
def test_a_handler_that_native_code_calls_does_what_it_does_elsewhere(form, issue, touches, monkeypatch):
    """Every outcome, with rd of x0, traps, waits, interrupts, and budgets that end anywhere."""
    form.choose(monkeypatch)
    program = "own x7,x5,x6; own x0,x7,x5; addi x5,x5,3; csrrs x6,0xb00,x0; own x6,x6,x7; jal x0,-20"
    handler = "csrrs x30,mepc,x0; addi x30,x30,4; csrrs x29,mcause,x0; blt x29,x0,8; csrrw x0,mepc,x30; mret"
    states, asked = [], ([], [])
    for engine, log in zip(("reference", "fast"), asked, strict=True):
        monkeypatch.setattr(engine_choice, "NAME", engine)
        row = CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", moods(log), issue=issue, touches=touches)
        rig = Rig(program, handler=handler, custom=[row], timing=CoreTiming(custom=2, alu=1, csr=3, trap=2),
                  lines=[(7 * n, (n & 1) * 128) for n in range(3, 91)])  # fmt: skip
        rig.hart.csrs.mie, rig.hart.csrs.mstatus = 128, 8
        seen = []
        for step in (*[1, 2, 3, 5, 50, 700] * 20, 3000):
            rig.engine.run(rig.hart.cycle + step)
            seen.append(rig.state())
        states.append(seen)
    assert states[0] == states[1]
    assert asked[0] == asked[1]
    assert {mood for *_, mood in asked[0]} == set(range(10))
    assert rig.hart.traps


def test_what_a_handler_raises_reaches_the_caller(monkeypatch):
    monkeypatch.setattr(engine_choice, "NAME", "fast")
    row = CustomInstruction(
        "own", MATCH, MASK, "rd,rs1,rs2", lambda operands: 1 // (operands.rs1 - 7), touches="nothing"
    )
    rig = Rig("own x7,x5,x6; addi x5,x5,-1; jal x0,-8", custom=[row])
    rig.hart.x[5] = 90_007
    with pytest.raises(ZeroDivisionError):
        rig.engine.run(1 << 20)
    assert rig.hart.pc == RAM and rig.hart.x[5] == 7


def test_a_hook_at_such_an_instruction_is_called(monkeypatch):
    monkeypatch.setattr(engine_choice, "NAME", "fast")
    row = CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", lambda operands: operands.rs1, touches="nothing")
    rig = Rig("own x7,x5,x6; addi x5,x5,1; jal x0,-8", custom=[row])
    rig.engine.run(200_000)
    seen = []
    rig.engine.code.add_hook(RAM, lambda hart: seen.append(hart.x[5]))
    rig.engine.run(rig.hart.cycle + 3000)
    assert len(seen) == 1000 and seen[-1] - seen[0] == 999


def test_operands_are_kept_for_native_code(monkeypatch):
    """Native code hands the same objects to each execution; they live as long as it."""
    monkeypatch.setattr(engine_choice, "NAME", "fast")
    seen = []

    def handler(operands):
        seen.append((operands.pc, operands.word))
        return len(seen)

    row = CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", handler, touches="nothing")
    rig = Rig("own x7,x5,x6; own x8,x5,x6; jal x0,-8", custom=[row])
    others = []
    for _ in range(4):
        rig.engine.run(rig.hart.cycle + 20_000)
        others += [1_000_000 + number for number in range(10_000)]  # take the places of objects that are not kept
    words = [rig.bus.peek(RAM + 4 * number, 4) for number in range(2)]
    assert set(seen) == {(RAM + 4 * number, int.from_bytes(word, "little")) for number, word in enumerate(words)}


def test_a_handler_may_change_the_code_that_follows(monkeypatch):
    """And its own instruction, in which rd is another register then."""

    def state(engine):
        monkeypatch.setattr(engine_choice, "NAME", engine)

        def handler(operands):
            turn = operands.rs1 // 1000
            if operands.rs1 % 1000 == 0:
                rig.bus.poke(RAM, assemble(rig.isa, f"own x{10 + turn % 8},x5,x6; addi x9,x9,{turn}"))
            return operands.rs1

        row = CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", handler, touches="memory")
        rig = Rig("own x7,x5,x6; addi x9,x9,0; addi x5,x5,1; jal x0,-12", custom=[row])
        rig.engine.run(200_000)
        assert rig.hart.x[9] == sum(turn // 1000 for turn in range(50_000))
        return rig.state()

    assert state("reference") == state("fast")


@each_engine
def test_whatever_integer_a_handler_returns_is_kept_modulo_the_register():
    results = [-1, 1 << 70 | 5, True, np.uint32(7), -(1 << 63), 1 << 63, Value(-1), 3]

    def handler(operands):
        assert (operands.word, operands.load(RAM, 1), operands.resumed) == (0x5C00_028B, b"\x8b", False)
        return results[operands.now % len(results)]

    own = CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", handler, touches="nothing")
    made = Rig("own x5,x0,x0\n" * 200, custom=[own])
    for cycle in range(100):
        made.engine.run(cycle + 1)
        result = results[cycle % len(results)]
        assert made.hart.x[5] == int(result.value if isinstance(result, Value) else result) & 0xFFFF_FFFF
