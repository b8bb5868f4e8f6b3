"""f registers between memories, devices, traps and code that changes: every form of native code as the reference."""

import engine_choice
import pytest
from hart_rig import DATA, PORT, RAM, Rig
from native_forms import NATIVE_FORMS, Form

from pyv_ext.bus.memory import Ram
from pyv_ext.isa.formats import F0
from pyv_ext.machine.slots import FFLAGS, FRM, FS

OTHER = 0x9000_0000
ISA = "rv32imafdc_zicsr_zifencei"
ON = "li x5,0x2000; csrrs x0,mstatus,x5"
SKIP = "csrrs x30,mepc,x0; addi x30,x30,4; csrrw x0,mepc,x30; addi x29,x29,1; mret"
"""The handler: goes on behind the instruction, and counts."""

LOOP = """
li x6,60
loop:
{body}
addi x6,x6,-1
bne x6,x0,loop
stop:
jal x0,stop
"""
BODIES = {
    "memory": "fld f1,0(x8); fadd.d f2,f2,f1,rne; fsd f2,8(x8); flw f3,16(x8); fmul.s f4,f3,f3,dyn; fsw f4,20(x8)",
    "another memory": "flw f1,0(x9); fadd.s f1,f1,f1,dyn; fsw f1,4(x9); fld f2,8(x9); fsd f2,16(x9)",
    "a device": "flw f1,0(x10); fsw f1,4(x10); fld f2,8(x10); fsd f1,0(x10)",
    "misaligned": "flw f1,2(x8); fld f2,4(x8); fsd f2,12(x8); fsw f1,1(x8); fld f3,8(x8)",
    "nothing there": "flw f1,0(x0); fld f2,0(x0); fsd f2,8(x0); fsw f1,8(x0)",
    "off and on": "fld f1,0(x8); csrrc x0,mstatus,x7; fld f2,8(x8); fadd.d f3,f1,f1,rne; csrrs x0,mstatus,x5;"
    "fadd.d f4,f1,f1,rne; csrrs x11,mstatus,x0",
    "rounding modes": "flw f1,16(x8); flw f2,24(x8); csrrwi x0,frm,3; fadd.s f3,f1,f2,dyn; csrrwi x0,frm,6;"
    "fadd.s f4,f1,f2,dyn; csrrwi x0,frm,0; fadd.s f5,f1,f2,dyn; fcvt.w.s x12,f5,rtz; fcvt.w.s x13,f5,rup",
    "flags": "csrrwi x0,fflags,0; flw f1,16(x8); fadd.s f2,f1,f1,dyn; csrrs x11,fflags,x0; flw f3,24(x8);"
    "fadd.s f4,f1,f3,dyn; csrrs x12,fflags,x0; fdiv.s f5,f1,f6,dyn; csrrs x13,fflags,x0",
    "no boxes": "fld f1,0(x8); fadd.s f2,f1,f1,dyn; fsgnj.s f3,f1,f1; feq.s x11,f1,f1; fclass.s x12,f1; fmv.x.w x13,f1",
}


def rig(form: Form, body: str, monkeypatch: pytest.MonkeyPatch) -> Rig:
    setup = f"{ON}; li x7,0x6000; li x8,{DATA}; li x9,{OTHER}; li x10,{PORT}"
    with monkeypatch.context() as patch:
        form.choose(patch)
        patch.setattr(engine_choice, "NAME", form.engine)
        made = Rig(f"{setup}\n{LOOP.format(body=body)}".replace(";", "\n"), isa=ISA, handler=SKIP)
        made.bus.add_ram(Ram("other", OTHER, 0x1000))
        made.bus.poke(DATA, bytes.fromhex("182d4454fb210940 0000000000000000 db0f4940 00000000 cdcccc3d 00000000"))
        made.bus.poke(OTHER, bytes.fromhex("db0f4940 00000000 182d4454fb210940 0000000000000000"))
        for cycle in (7, 150, 333, 2000):
            made.engine.run(until=cycle)
    return made


def state(made: Rig) -> tuple[object, ...]:
    floats = tuple(made.hart.x[F0 : F0 + 32]), made.hart.x[FFLAGS], made.hart.x[FRM], made.hart.x[FS]
    return (*made.state(), *floats, made.bus.peek(OTHER, 64))


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_every_form_does_what_the_reference_does(body: str, form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, found = (rig(each, body, monkeypatch) for each in (Form("reference"), form))
    assert found.hart.instret > 300
    assert state(found) == state(expected)


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
def test_a_store_of_an_f_register_overwrites_code(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instruction at `loop`, by what it is and `addi x20,x20,1`, in turns."""
    body = f"addi x20,x20,1; li x21,{RAM}; fld f1,0(x8); flw f2,28(x8); fsw f2,60(x21); fence.i; addi x20,x20,64"
    expected, found = (rig(each, body, monkeypatch) for each in (Form("reference"), form))
    assert state(found) == state(expected)
