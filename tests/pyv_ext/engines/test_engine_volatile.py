"""Code that is overwritten again and again: it takes effect at once, and native code executes it as it stands."""

import engine_choice
import pytest
from hart_rig import DATA, RAM, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import NATIVE_FORMS, Form
from shares import draws
from work_count import calls

from pyv_ext.engines import code
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.engines.fast import engine, space
from pyv_ext.machine.csr import PMPADDR, PMPCFG
from pyv_ext.machine.traps import Cause
from pyv_ext.protocols import CustomInstruction, Value
from pyv_ext.timing import CoreTiming

TIMING = CoreTiming(load=2, irq=4)
ADDI_X5_X5, RETURN = 0x0002_8293, 0x0000_8067
TARGET, NEXT_LINE = RAM + 0x80, RAM + 0xC0
ROUNDS = 40

PATCHES = """
    again:
    slli x12,x20,20
    add x12,x12,x11
    sw x12,0(x10)
    fence.i
    jalr x1,0(x13)
    addi x20,x20,1
    bne x20,x21,again
    end:
    jal x0,end
"""
"""Writes `addi x5,x5,x20` to the address in x10 and calls what is at the address in x13."""


def rig(program=PATCHES, at=TARGET):
    made = Rig(program, timing=TIMING, misaligned=True)
    made.bus.poke(at + 4, RETURN.to_bytes(4, "little"))
    for register, value in {10: at, 11: ADDI_X5_X5, 13: at, 20: 0, 21: ROUNDS}.items():
        made.hart.x[register] = value
    return made


@pytest.fixture(params=(Form("reference"), *NATIVE_FORMS), ids=str)
def each_form(request, monkeypatch):
    """For one test alone, unlike `each_engine`: others look at native code as it is."""
    request.param.choose(monkeypatch)
    monkeypatch.setattr(engine_choice, "NAME", request.param.engine)


@pytest.fixture
def native_at_once(monkeypatch):
    monkeypatch.setattr(engine_choice, "NAME", "fast")
    monkeypatch.setattr(engine, "WARM_UP", 0)


@pytest.mark.usefixtures("each_form")
@pytest.mark.parametrize(
    "at", [TARGET, NEXT_LINE - 2, RAM + 0x30], ids=["in a line", "over two lines", "in the first line of memory"]
)
@pytest.mark.parametrize("rounds", [3, ROUNDS])
def test_every_version_of_code_that_changes_is_executed(at, rounds):
    made = rig(at=at)
    made.hart.x[21] = rounds
    made.engine.run(60 * rounds)
    assert made.x[5] == sum(range(rounds))


@pytest.mark.usefixtures("each_form")
def test_a_word_that_was_there_before_is_executed_again():
    made = rig(PATCHES.replace("slli x12,x20,20", "andi x12,x20,3; slli x12,x12,20"))
    made.engine.run(80 * ROUNDS)
    assert made.x[5] == 6 * ROUNDS // 4


@pytest.mark.usefixtures("each_form")
def test_a_bus_master_writes_where_code_changes_often():
    made = rig()
    made.engine.run(5 * ROUNDS)
    before = made.x[5]
    made.hart.x[11] = 0x0000_0013  # nop: what is written from now on
    made.bus.poke(TARGET, (ADDI_X5_X5 | 7 << 20).to_bytes(4, "little"))
    made.hart.pc, made.hart.x[1] = TARGET, RAM + 28  # jal x0,end
    made.engine.run(made.hart.cycle + 20)
    assert made.x[5] == before + 7


@pytest.mark.usefixtures("each_form")
def test_a_hook_holds_where_code_changes_often():
    made = rig()
    made.engine.run(5 * ROUNDS)
    seen = []
    made.engine.code.add_hook(TARGET, lambda hart: seen.append(hart.x[20]))
    made.engine.run(60 * ROUNDS)
    assert made.x[5] == sum(range(ROUNDS))
    assert len(seen) > ROUNDS // 4
    assert seen == list(range(seen[0], ROUNDS))
    made.engine.code.add_hook(RAM + 28, lambda hart: Stop(StopReason.BREAKPOINT))
    assert made.engine.run(80 * ROUNDS).reason is StopReason.BREAKPOINT


@pytest.mark.usefixtures("each_form")
def test_fence_i_sees_what_a_device_has_changed_unseen():
    program = PATCHES.replace("sw x12,0(x10)", "sw x12,16(x9); lw x12,0(x9)")
    made = rig(program)
    made.hart.x[9] = 0x4000_0000
    made.port.on_write = lambda value: made.ram.u8.__setitem__(
        slice(TARGET - RAM, TARGET - RAM + 4), value.to_bytes(4, "little")
    )
    made.engine.run(200 * ROUNDS)
    assert made.x[5] == sum(range(ROUNDS))


# -- how -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [TARGET, RAM + 0x34], ids=["in a line", "in the first line of memory"])
def test_words_that_come_back_are_not_decoded_anew(at, native_at_once, monkeypatch):
    decoded = []
    original = space.TranslationCache._decode
    monkeypatch.setattr(space.TranslationCache, "_decode", lambda self, pc: decoded.append(pc) or original(self, pc))
    made = rig(PATCHES.replace("slli x12,x20,20", "andi x12,x20,3; slli x12,x12,20"), at)
    made.hart.x[21] = 2000
    made.engine.run(80 * 2000)
    assert made.x[5] == 3000
    assert decoded.count(at) <= code.MAX_OVERWRITES + 4 + 2


def test_words_that_were_elsewhere_are_not_decoded_anew(native_at_once, monkeypatch):
    """Two places take turns, in which each is overwritten by what was in the other."""
    decoded = []
    original = space.TranslationCache._decode_self_modifying

    def decode(self, pc, word):
        if word != RETURN:  # behind each of the others
            decoded.append(word)
        return original(self, pc, word)

    monkeypatch.setattr(space.TranslationCache, "_decode_self_modifying", decode)
    made = rig(PATCHES.replace("add x12,x12,x11", "add x12,x12,x11; xor x10,x10,x16; xor x13,x13,x16"))
    made.bus.poke(TARGET + 0x100 + 4, RETURN.to_bytes(4, "little"))
    made.hart.x[16], made.hart.x[21] = TARGET ^ TARGET + 0x100, 2000
    made.engine.run(100 * 2000)
    assert made.x[5] == sum(count - 4096 * (count >> 11) for count in range(2000))
    assert len(decoded) < 2000 + 20  # not twice, where each place has every other number
    decoded.clear()
    made.hart.pc, made.hart.x[20], made.hart.x[13] = RAM, 0, made.x[13] ^ made.x[16]
    made.hart.x[10] ^= made.x[16]
    made.engine.run(made.hart.cycle + 100 * 2000)
    assert len(decoded) < 500  # the numbers of the other place, but for what has left


WORDS = [
    *(ADDI_X5_X5 | number << 20 for number in (1, 2, 3)),
    0x00E2_82B3,  # add x5,x5,x14
    0x0062_828B,  # mac x5,x5,x6
    0x0285_0285,  # c.addi x5,1, twice
    0x0000_0000,  # illegal
]
WRITES = """
    again:
    lw x12,0(x14)
    lw x15,4(x14)
    lw x13,8(x14)
    sw x12,0(x15)
    fence.i
    jalr x1,0(x13)
    addi x14,x14,12
    bne x14,x21,again
    end:
    jal x0,end
"""
"""Writes each word of a list to its address, and calls what is at another one."""
BUFFERS = TARGET, TARGET + 0x100
writes = st.tuples(st.sampled_from(WORDS), st.sampled_from(BUFFERS), st.integers(0, 2), st.sampled_from(BUFFERS))


@settings(max_examples=draws(30), deadline=None, derandomize=True, database=None)
@given(st.lists(writes, min_size=20, max_size=120), st.booleans(), st.sampled_from((0, 4)))
def test_what_is_written_means_what_it_does_there(listed, forbidden, hooked):
    """PMP forbids machine mode, too, to fetch the second half of one buffer; a place has a hook; an instruction is a
    custom one."""
    seen = []
    for form in (Form("reference"), *NATIVE_FORMS):
        with pytest.MonkeyPatch.context() as patch:
            form.choose(patch)
            patch.setattr(engine_choice, "NAME", form.engine)
            mac = CustomInstruction("mac", 0x0B, 0xFE00707F, "rd,rs1,rs2", lambda o: Value(o.rs1 + o.pc & 0xFFFF))
            made = Rig(WRITES, handler="csrrw x0,mepc,x1; addi x29,x29,1; mret", timing=TIMING, custom=[mac])
        for buffer in BUFFERS:
            made.bus.poke(buffer, 3 * (0x13).to_bytes(4, "little") + RETURN.to_bytes(4, "little"))
        rows = [(word, buffer + 4 * place, called) for word, buffer, place, called in listed]
        made.bus.poke(DATA, b"".join(value.to_bytes(4, "little") for row in rows for value in row))
        made.hart.x[14], made.hart.x[21] = DATA, DATA + 12 * len(rows)
        if forbidden:
            made.hart.csrs.write(PMPADDR, BUFFERS[1] + 8 >> 2)
            made.hart.csrs.write(PMPCFG, 0x93)  # locked, NA4, R and W
        called = []
        if hooked:
            made.engine.code.add_hook(BUFFERS[0] + hooked, lambda hart, called=called: called.append(hart.cycle))
        made.engine.run(200 * len(rows))
        seen.append((made.state(), made.x[5], made.x[29], called))
    assert seen[1:] == [seen[0]] * len(NATIVE_FORMS)


def test_python_decodes_nothing_of_what_native_code_executes(native_at_once):
    made = Rig("again:; addi x1,x1,1; addi x1,x1,1; jal x0,again")
    made.engine.run(300)
    assert not made.engine.code.steps
    seen = []
    made.engine.code.add_hook(RAM + 4, lambda hart: seen.append(hart.cycle))
    made.engine.run(306)
    assert seen == [301, 304]


def test_a_trap_of_native_code_shows_the_half_that_is_illegal(native_at_once):
    made = Rig("again:; addi x1,x1,1; .word 0x12340000; jal x0,again")
    made.engine.run(3)
    assert (made.hart.csrs.mcause, made.hart.csrs.mtval, made.hart.csrs.mepc) == (Cause.ILLEGAL, 0, RAM + 4)


@pytest.mark.usefixtures("each_form")
def test_a_jump_from_where_a_debugger_should_not_have_put_pc_traps():
    made = Rig(".word 0x006f0000; .word 0; addi x0,x0,0", isa="rv32i_zicsr_zifencei")  # jal x0,0 at RAM + 2
    made.hart.pc = RAM + 2
    made.engine.run(3)
    assert (made.hart.csrs.mcause, made.hart.csrs.mtval) == (Cause.MISALIGNED_FETCH, RAM + 2)


def test_code_that_has_come_to_rest_is_translated(native_at_once, monkeypatch):
    monkeypatch.setattr(space, "HOT", 40)
    monkeypatch.setattr(space, "WARM", 2)
    made = rig()
    made.engine.run(40 * ROUNDS)
    assert made.engine.code.is_self_modifying(TARGET)
    made.bus.poke(RAM + 8, (0x13).to_bytes(4, "little"))  # it patches no more
    made.hart.pc, made.hart.x[20], made.hart.x[21] = RAM, 0, 1 << 20
    made.engine.run(made.hart.cycle + 20_000)
    assert not made.engine.code.is_self_modifying(TARGET)
    assert any(TARGET in region.pcs for region in made.engine._native.spaces[None].regions.values())


def test_data_behind_the_last_instruction_of_a_line_is_not_taken_for_code(native_at_once):
    """A lock behind a handler: neither decoding ahead nor the line of the next instruction makes it slow."""
    made = Rig(f"again:; amoadd.w x5,x6,(x10); jal x0,far; {'addi x0,x0,0; ' * 12} far:; jal x0,again", timing=TIMING)
    assert made.bus.peek(RAM + 0x38, 4) != bytes(4) and made.bus.peek(RAM + 0x40, 4) == bytes(4)
    made.hart.x[6], made.hart.x[10] = 1, RAM + 0x40
    made.engine.run(20_000)
    counted = calls(lambda: made.engine.run(40_000))
    assert made.bus.peek(RAM + 0x40, 4) != bytes(4) and counted < 100
