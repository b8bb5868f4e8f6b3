"""Regions of native code: what keeps registers out of memory and checks accesses together changes nothing.

Each program runs translated in short slices beside the reference; whatever is visible between two slices is equal.
"""

import random

import engine_choice
import pytest
from hart_rig import DATA, RAM, Rig

from pyv_ext.engines.closures import Closures, Step
from pyv_ext.engines.fast import engine as fast
from pyv_ext.engines.fast import flow, region, space
from pyv_ext.engines.fast.blocks import BasicBlock, accesses
from pyv_ext.engines.fast.flow import live_in, loops, returns
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.machine.state import LINE
from pyv_ext.timing import CoreTiming

SIZE = 0x10_0000
SKIP = "csrrs x30,0x341,x0; addi x30,x30,4; csrrw x0,0x341,x30; addi x29,x29,1; mret"
"""A handler that goes on behind what has trapped."""


def pair(
    body: str, monkeypatch: pytest.MonkeyPatch, pointer: int = DATA, *, misaligned: bool = False
) -> list[Rig]:  # fmt: skip
    """The reference, and translations of everything that is come to six times."""
    monkeypatch.setattr(fast, "WARM_UP", 0)
    monkeypatch.setattr(space, "HOT", 6)
    monkeypatch.setattr(space, "WARM", 2)
    rigs = []
    for engine in ("reference", "fast"):
        monkeypatch.setattr(engine_choice, "NAME", engine)
        made = Rig(body, handler=SKIP, timing=CoreTiming(load=2, taken=3, mul=4), misaligned=misaligned)
        for register in range(5, 29):
            made.hart.x[register] = register * 0x0123_4567 & 0xFFFF_FFFF
        made.hart.x[10] = pointer
        rigs.append(made)
    return rigs


def same(rigs: list[Rig], slices: int = 60) -> Rig:
    """Run both in slices of all small lengths; one that has run."""
    first, second = rigs
    until = 600
    for length in range(1, slices):
        assert first.engine.run(until) == second.engine.run(until)
        assert second.state() == first.state(), until
        assert second.ram.u8[-64:] == first.ram.u8[-64:], until
        until += length
    return second


@pytest.mark.parametrize("name", ["lw", "lh", "lbu", "sw", "sb"])
@pytest.mark.parametrize("pointer", [DATA, DATA + 1, DATA + 2, RAM + SIZE - 8, RAM + SIZE - 15, RAM - 8, RAM + SIZE])
@pytest.mark.parametrize("misaligned", [False, True])
def test_accesses_that_are_checked_together_trap_one_by_one(name, pointer, misaligned, monkeypatch):
    accesses = [f"{name} x{5 + index},{offset}(x10)" for index, offset in enumerate((4, -4, 12, 0))]
    body = "again:; addi x20,x20,1; " + "; xor x21,x21,x20; ".join(accesses) + "; addi x22,x21,7; jal x0,again"
    made = same(pair(body, monkeypatch, pointer, misaligned=misaligned))
    assert made.hart.x[20] > 50


@pytest.mark.parametrize("store", ["sw x5,-10(x10); sw x5,-2(x10)", "sw x5,-2(x10)", "sw x5,-1000(x10); sw x5,-2(x10)"])
def test_a_store_that_reaches_into_a_line_of_code_changes_the_code(store, monkeypatch):
    """Its first byte is in the line before. It changes rd of the first instruction of the loop, by turns; when it does
    so first, the loop has long been translated."""
    padding = "; ".join(["addi x0,x0,0"] * 511)
    loop = f"again:; addi x20,x20,1; xor x5,x5,x6; {store}; addi x22,x22,-1; bne x22,x0,again"
    body = f"jal x0,again; {padding}; {loop}; addi x10,x23,0; addi x22,x0,100; jal x0,again"
    machines = pair(body, monkeypatch, DATA + 0x2000, misaligned=True)
    begin = RAM + 4 * 512
    assert begin % LINE == 0
    for made in machines:
        first = int.from_bytes(made.ram.u8[4 * 512 : 4 * 512 + 2], "little")
        for number, value in ((5, first << 16), (6, 1 << 7 << 16), (20, 0), (21, 0), (22, 100), (23, begin)):
            made.hart.x[number] = value
    made = same(machines)
    assert made.hart.x[20] > 100 and made.hart.x[21] > 20


def test_a_store_is_not_executed_again_where_a_later_access_leaves(monkeypatch):
    body = "again:; lw x5,0(x10); addi x5,x5,1; sw x5,0(x10); lw x6,1(x11); addi x7,x7,1; jal x0,again"
    rigs = pair(body, monkeypatch)
    for made in rigs:
        made.hart.x[11] = DATA
    made = same(rigs)
    assert made.ram.u32[(DATA - RAM) // 4] == made.hart.x[29] + 1 or made.hart.pc != RAM
    assert made.hart.x[29] > 50


@pytest.mark.parametrize("offset", [0, LINE, 2 * LINE + 4, 5 * LINE])
def test_stores_that_are_checked_together_are_seen_by_code(offset, monkeypatch):
    """The last of them changes the immediate of an instruction that the loop executes, and so does no other."""
    body = f"""
    again:
    addi x7,x7,1
    andi x7,x7,1023
    slli x6,x7,20
    or x6,x6,x8
    sw x6,{-offset - 4}(x10)
    sw x6,0(x10)
    jalr x1,0(x10)
    addi x22,x22,1
    jal x0,again
    """
    rigs = pair(body, monkeypatch, RAM + 0x800)
    for made in rigs:
        made.bus.poke(RAM + 0x800, (0x0000_0A93).to_bytes(4, "little") + (0x0000_8067).to_bytes(4, "little"))
        made.hart.x[8] = 0x0000_0A93  # addi x21,x0,0
        made.hart.x[7] = 0
    made = same(rigs)
    assert made.hart.x[21] > 5


@pytest.mark.parametrize("join", ["or", "xor", "add"])
@pytest.mark.parametrize(("left", "right"), [(25, 7), (1, 31), (16, 16), (7, 25), (7, 7), (31, 2)])
def test_what_two_shifts_and_a_join_put_together(join, left, right, monkeypatch):
    body = (
        f"again:; slli x6,x5,{left}; srli x7,x5,{right}; {join} x8,x6,x7; {join} x9,x7,x6; srli x11,x12,{right}; "
        f"{join} x13,x6,x11; sll x14,x5,x15; {join} x16,x14,x7; mul x5,x5,x17; addi x5,x5,9; jal x0,again"
    )
    same(pair(body, monkeypatch), 30)


LOOPS = {
    "one block": "again:; addi x5,x5,1; xor x6,x6,x5; sw x6,0(x10); lw x7,0(x10); add x8,x8,x7; bne x5,x9,again",
    "two blocks": "again:; addi x5,x5,1; andi x6,x5,3; beq x6,x0,skip; add x7,x7,x5; skip:; mul x8,x7,x5; "
    "bne x5,x9,again",
    "a way out": "again:; addi x5,x5,1; andi x6,x5,15; beq x6,x0,out; add x7,x7,x5; addi x11,x6,3; bne x5,x9,again; "
    "out:; add x12,x12,x11; xor x13,x7,x6",
    "nested": "outer:; addi x6,x0,4; again:; addi x6,x6,-1; add x7,x7,x6; sub x8,x7,x5; bne x6,x0,again; "
    "addi x5,x5,1; bne x5,x9,outer",
    "a call": "again:; addi x5,x5,1; jal x1,leaf; add x7,x7,x6; bne x5,x9,again; jal x0,over; leaf:; "
    "slli x6,x5,2; jalr x0,0(x1); over:",
    "entered below": "jal x0,below; again:; add x7,x7,x5; below:; addi x5,x5,1; xor x8,x8,x7; bne x5,x9,again",
    "a jump back": "again:; addi x5,x5,1; bge x5,x9,out; add x7,x7,x5; jal x0,again; out:",
    "traps": "again:; addi x5,x5,1; add x7,x7,x5; lw x8,1(x10); sub x11,x8,x7; bne x5,x9,again",
}


@pytest.mark.parametrize("name", LOOPS)
def test_registers_around_loops_are_there_at_any_budget(name, monkeypatch):
    rigs = pair(f"start:; addi x5,x0,1; addi x9,x0,21; {LOOPS[name]}; addi x20,x20,1; jal x0,start", monkeypatch)
    made = same(rigs, 90)
    assert made.hart.x[20] > 3


# -- what is found ---------------------------------------------------------------------------------------------


def block(text: str, at: int = RAM) -> BasicBlock:
    made = Rig(text)
    instructions, pc = [], at
    for word in made.ram.u32[: len(text.split(";"))]:
        instruction = made.hart.isa.decode(word)
        assert instruction is not None
        instructions.append((pc, instruction))
        pc += instruction.length
    return BasicBlock(at, tuple(instructions), pc)


def test_returns_are_known_by_the_calls_that_lead_to_them():
    words = [
        block("jal x1,0x100"), block("addi x5,x0,1; jal x1,0x100", RAM + 4), block("jalr x1,0(x7)", RAM + 12),
        block("jal x0,0x80", RAM + 16), block("bne x5,x0,0x20", RAM + 0x100), block("jalr x0,0(x1)", RAM + 0x104),
        block("jalr x0,0(x1)", RAM + 0x120), block("jalr x0,0(x1)", RAM + 0x200),
    ]  # fmt: skip
    assert returns(words, 0xFFFF_FFFF) == {RAM + 0x104: (RAM + 4,), RAM + 0x120: (RAM + 4,), RAM + 0x200: (RAM + 16,)}


RETURNS = """
    addi x20,x0,40
    loop:
    jal x1,f; addi x21,x21,1; jal x1,f; addi x21,x21,2; jal x1,g; andi x22,x20,3; bne x22,x0,next
    jal x5,h
    next:
    addi x26,x26,1; addi x20,x20,-1; bne x20,x0,loop; jal x0,0
    f:
    add x23,x23,x21; andi x24,x23,1; bne x24,x0,odd; jalr x0,0(x1)
    odd:
    addi x23,x23,5; jalr x0,0(x1)
    g:
    addi x25,x1,0; jal x1,f; addi x1,x25,0; jalr x0,0(x1)
    h:
    addi x1,x5,4; jalr x0,0(x1)
"""
"""Functions that return where they are called, and one that returns to where no call is."""


def test_returns_go_where_the_register_says(monkeypatch):
    reference, native = pair(RETURNS, monkeypatch)
    for until in (*range(1, 400, 7), 900, 5000):
        assert [each.engine.run(until) for each in (reference, native)] == [None, None]
        assert reference.state() == native.state()
    assert reference.x[20] == 0


def test_addresses_are_followed_through_what_adds_a_constant():
    made, reaches = accesses(
        block("lw x5,8(x10); addi x11,x10,16; sw x5,0(x11); lb x6,1(x10); mul x10,x10,x5; lw x7,8(x10)"), 0xFFFF_FFFF
    )
    assert [made[index].base for index in (0, 2, 3, 5)] == [0, 0, 1, 2]
    assert reaches[0] == (4, 12, (8,), True, OpClass.AMO)
    assert (made[2].offset, made[2].group_distance) == (8, -8)


def test_accesses_that_need_not_be_aligned_are_checked_together_whatever_their_size():
    made, (reach,) = accesses(
        block("lw x5,9(x10); sb x5,1(x10); sw x5,63(x10); lh x6,-2(x10)"), 0xFFFF_FFFF, misaligned=True
    )
    assert [(each.base, each.offset) for each in made.values()] == [(0, 11), (0, 3), (0, 65), (0, 0)]
    assert reach == (1, 69, (3, 67, 68), True, OpClass.AMO)  # the last byte stored to is 68


def test_a_known_address_is_checked_when_it_is_translated():
    made, reaches = accesses(block("lui x5,0x80004; lw x6,-4(x5); auipc x7,1; sw x6,4(x7)"), 0xFFFF_FFFF)
    assert [(each.base, each.offset) for each in made.values()] == [(None, DATA - 4), (None, RAM + 8 + 0x1004)]
    assert not reaches


def test_a_loop_keeps_what_its_blocks_read_and_write():
    (loop,) = loops([block("addi x5,x5,1; mul x6,x5,x7; add x8,x6,x5; bne x5,x9,-12")], 0xFFFF_FFFF)
    assert loop == (frozenset({RAM}), (5, 6, 7, 8, 9), frozenset({5, 6, 8}))


def test_a_loop_of_many_registers_keeps_what_goes_from_block_to_block():
    """Results of one block alone are in memory; with a register less, they are kept, too."""
    results = "; ".join(f"addi x{number},x5,1" for number in range(10, 20))
    (loop,) = loops([block(f"addi x5,x5,1; {results}; add x6,x6,x10; bne x5,x7,{-4 * 12}")], 0xFFFF_FFFF)
    assert loop == (frozenset({RAM}), (5, 6, 7), frozenset({5, 6}))
    results = results.removesuffix("; addi x19,x5,1")
    (loop,) = loops([block(f"addi x5,x5,1; {results}; add x6,x6,x10; bne x5,x7,{-4 * 11}")], 0xFFFF_FFFF)
    assert loop.registers == (5, 6, 7, *range(10, 19))


def test_a_block_is_given_what_it_uses_by_the_one_that_alone_leads_to_it():
    first = block("addi x5,x5,1; lw x6,0(x10); addi x7,x0,3; beq x5,x6,24")
    second = block("add x8,x5,x6; addi x9,x9,1; beq x8,x9,8", RAM + 16)  # over `third`
    third = block("addi x7,x8,1", RAM + 28)
    last = block("sub x5,x7,x5", RAM + 32)
    mask = 0xFFFF_FFFF
    assert live_in([first, second, third], {}, mask) == {
        RAM + 16: (frozenset({RAM}), (5, 6, 7), frozenset({5, 6, 7})),  # 7 is overwritten in the third
        RAM + 28: (frozenset({RAM + 16}), (7, 8), frozenset({7, 8})),
    }
    given = live_in([first, second, third, last], {}, mask)
    assert RAM + 32 not in given  # the second and the third lead to it
    assert RAM + 28 not in live_in([third, second], {}, mask)  # it comes before what leads to it


def test_what_leads_to_a_block_by_a_return_or_in_a_loop_counts():
    first = block("addi x5,x5,1; bne x5,x6,12")
    returning = block("addi x7,x7,1; jalr x0,0(x1)", RAM + 8)
    last = block("add x5,x5,x7; bne x5,x6,-20", RAM + 16)
    assert loops([first, last], 0xFFFF_FFFF)
    given = live_in([first, returning, last], {RAM + 8: (RAM + 16,)}, 0xFFFF_FFFF)
    assert given[RAM + 8].sources == {RAM}
    assert given[RAM + 16].sources == {RAM, RAM + 16}  # of the loop
    given = live_in([block("addi x5,x5,1"), block("bne x5,x6,-4", RAM + 4)], {}, 0xFFFF_FFFF)
    assert given[RAM].sources == given[RAM + 4].sources == {RAM, RAM + 4}
    behind = block("add x5,x5,x7", RAM + 4)
    assert live_in([block("ecall"), behind], {}, 0xFFFF_FFFF) == {}
    assert live_in([block("addi x5,x5,1"), behind], {RAM + 8: (RAM + 4,)}, 0xFFFF_FFFF)
    assert not live_in([block("addi x5,x5,1"), returning, behind], {RAM + 8: (RAM + 4,)}, 0xFFFF_FFFF)


def test_a_function_returns_its_results_to_calls_that_are_not_translated(monkeypatch):
    """One is translated with the function, which hands its results on there; the other comes 200 rounds later."""
    body = """again:; addi x20,x20,1; jal x1,f; add x21,x21,x7; add x21,x21,x8; bne x20,x22,again
        jal x1,f; add x23,x23,x7; sub x23,x23,x8; addi x22,x22,50; jal x0,again
        f:; addi x7,x7,1; addi x8,x8,3; jalr x0,0(x1)"""
    machines = pair(body.replace("\n", ";"), monkeypatch)
    for made in machines:
        made.hart.x[20], made.hart.x[22], made.hart.x[23] = 0, 200, 0
    assert same(machines, 110).hart.x[23]


def test_a_loop_of_many_registers_hands_nothing_on():
    uses = "; ".join(f"add x{number},x{number},x5" for number in range(8, 13))
    few = block(f"addi x5,x5,1; {uses}; bne x5,x6,-24")
    more = block(f"addi x5,x5,1; {uses}; add x13,x13,x14; bne x5,x6,-28")
    for loop, hands_on in ((few, True), (more, False)):
        behind = block("add x20,x5,x8", loop.end)
        assert (loop.end in live_in([loop, behind], {}, 0xFFFF_FFFF)) is hands_on


@pytest.mark.parametrize("seed", range(24))
def test_registers_are_the_same_on_all_ways_through_branches_and_calls(seed, monkeypatch, unkept):
    """Blocks that one block leads to, joins, calls, and accesses that leave, without loops and with them."""
    monkeypatch.setattr(flow, "LOOP_BLOCKS", 12 if seed % 3 == 0 else 0)
    chance, count = random.Random(seed), 9

    def number():
        return chance.randint(5, 9 if seed % 2 else 28)  # few registers are known again and again

    def instruction():
        kind = chance.choice(("add", "sub", "xor", "mul", "addi", "lw", "sw", "far"))
        target = number()
        target = 29 if target == 10 else target
        if kind == "addi":
            return f"addi x{target},x{number()},{chance.randint(-9, 9)}"
        if kind in ("lw", "sw"):
            return f"{kind} x{target},{4 * chance.randint(0, 12)}(x10)"
        if kind == "far" and chance.random() < 0.3:
            return f"lw x{target},0(x{number()})"  # mostly nowhere
        return f"{'and' if kind == 'far' else kind} x{target},x{number()},x{number()}"

    def segment(index):
        lines = [f"s{index}:", *(instruction() for _ in range(chance.randint(1, 5)))]
        way = chance.random()
        if way < 0.7:
            name = chance.choice(("beq", "bne", "blt", "bgeu"))
            lines.append(f"{name} x{number()},x{number()},s{chance.randint(index + 1, count)}")
        elif way < 0.85:
            lines.append("jal x1,f")
        return "; ".join(lines)

    program = "; ".join(segment(index) for index in range(count))
    leaf = "; ".join(["f:", *(instruction() for _ in range(3)), "jalr x0,0(x1)"])
    same(pair(f"s:; addi x5,x5,1; {program}; s{count}:; jal x0,s; {leaf}", monkeypatch))


def test_a_block_is_left_for_few_instructions_to_execute_again(monkeypatch, unkept):
    """A way out for each part of a long block, at `MAX_REPEATED` instructions."""
    monkeypatch.setattr(region, "MAX_REPEATED", 4)
    lines = "; ".join(f"addi x5,x5,{index}; lw x6,{index}(x10)" for index in range(0, 32, 4))
    body = f"again:; {lines}; addi x10,x10,1; andi x11,x10,7; bne x11,x0,again; li x10,{DATA}; jal x0,again"
    same(pair(body, monkeypatch))


def test_closures_are_made_of_what_closures_execute_alone(monkeypatch):
    made: list[int] = []
    original = Closures.make

    def counted(self: Closures, instruction: Instruction, pc: int) -> Step:
        made.append(pc)
        return original(self, instruction, pc)

    monkeypatch.setattr(Closures, "make", counted)
    reference, native = pair("again:; addi x5,x5,1; xor x6,x6,x5; jal x0,again", monkeypatch)
    native.engine.run(500)
    assert not made
    native.engine.step()
    assert len(made) == 1  # which native code had decoded
    reference.engine.run(500)
    assert sorted(made[1:]) == [RAM, RAM + 4, RAM + 8]
