"""Random programs of every instruction, traps included: registers and memory at their end against QEMU."""

import random
import subprocess

import pytest
from external_tools import QEMU, needs
from hart_rig import RAM, Rig, assemble

from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.isa import InstructionDef, Isa, OpClass

NAME = "rv32imac_zicsr_zifencei_zba_zbb_zbs"
ISA = Isa(NAME)
ITEMS = 4000

START = RAM + 0x100
DATA = RAM + 0x8_0000
REACH = 1024
"""Bytes from DATA on that loads and stores reach; the registers are put after them."""
DUMPED = REACH + 32 * 4

FREE = 28
"""Registers x0..x27 are for the program; x30 holds DATA, x29 a digest of all traps, x28 and x31 are the handler's."""

HANDLER = """
csrrs x31,mcause,x0
xor x29,x29,x31
rori x29,x29,5
addi x28,x31,-3
sltu x28,x0,x28
sub x28,x0,x28
csrrs x31,mtval,x0
and x31,x31,x28
add x29,x29,x31
rori x29,x29,7
csrrs x31,mepc,x0
add x29,x29,x31
lhu x28,0(x31)
andi x28,x28,3
sltiu x28,x28,3
xori x28,x28,1
addi x28,x28,1
sh1add x28,x28,x31
csrrw x0,mepc,x28
mret
"""
"""Mixes cause, value (of breakpoints QEMU gives none) and pc of a trap into x29, goes on after the instruction."""

SEND = f"""
addi x1,x30,0
addi x2,x30,{DUMPED}
li x3,0x10000000
byte:
lbu x4,0(x1)
sb x4,0(x3)
addi x1,x1,1
bne x1,x2,byte
li x3,0x00100000
li x4,0x5555
sw x4,0(x3)
spin:
jal x0,spin
"""
"""Writes what is dumped to the UART and ends the machine."""

SYSTEM = (
    *("csrrw x3,mscratch,x4", "csrrs x5,mscratch,x6", "csrrc x5,mscratch,x9", "csrrci x7,mscratch,9"),
    *("csrrwi x7,mscratch,3", "csrrw x8,mcause,x9", "csrrsi x11,mie,8", "csrrs x12,mepc,x0"),
    *("fence rw,rw", "fence.i", "fence.tso"),
)
TRAPS = (
    *("ecall", "ebreak", "c.ebreak", ".word 0x4b", ".word 0xffffffff", ".word 0x02004033", ".word 0x00010000"),
    *("csrrw x1,0x7c0,x1", "csrrw x1,mhartid,x1", "lw x1,0(x0)", "sw x1,-4(x0)"),
)


def operation(row: InstructionDef, chance: random.Random) -> bytes:
    """A random instruction of the row; memory is accessed around x30."""
    while True:
        word = row.match | chance.getrandbits(8 * row.length) & ~row.mask
        instruction = ISA.decode(word)
        if instruction is None or instruction.row is not row:
            continue
        if max(instruction.rd, instruction.rs1, instruction.rs2) >= FREE:
            continue
        code = word.to_bytes(row.length, "little")
        if row.op_class is OpClass.OP:
            return code
        if row.length == 2:
            return assemble(ISA, f"add x{instruction.rs1},x30,x0") + code
        imm = chance.randrange(0, REACH, row.size)
        word = ISA.encode(row.name, rd=instruction.rd, rs1=30, rs2=instruction.rs2, imm=imm)
        return word.to_bytes(row.length, "little")


def skip(row: InstructionDef, chance: random.Random) -> bytes:
    """A branch or jump to a random one of the six addresses in and around five instructions."""
    fields = {"rd": chance.randrange(FREE), "rs1": chance.randrange(8, 16), "rs2": chance.randrange(FREE)}
    word = ISA.encode(row.name, **fields, imm=row.length + 2 * chance.randrange(6))
    return word.to_bytes(row.length, "little") + assemble(
        ISA, "c.addi x8,3; c.add x9,x8; c.sub x8,x9; c.mv x7,x9; c.xor x9,x8"
    )


def leap(chance: random.Random) -> bytes:
    """A jump through a register to the next item."""
    register = chance.randrange(1, FREE)
    name, length = chance.choice([("jalr x{},9(x{})", 4), ("c.jr x{1}", 2), ("c.jalr x{1}", 2)])
    text = name.format(chance.randrange(FREE), register)
    pad = "" if length == 4 else f"; addi x{register},x{register},10"
    return assemble(ISA, f"auipc x{register},0{pad}; {text}")


def program(seed: int) -> bytes:
    chance = random.Random(seed)
    plain = [
        row
        for row in ISA.rows
        if row.op_class in (OpClass.OP, OpClass.LOAD, OpClass.STORE, OpClass.LR, OpClass.SC, OpClass.AMO)
    ]
    control = [row for row in ISA.rows if row.op_class is OpClass.BRANCH or row.name in ("jal", "c.j", "c.jal")]
    items = [f"li x{n},{chance.getrandbits(32):#x}" for n in range(1, FREE)]
    items += [f"li x30,{DATA:#x}", "addi x29,x0,0"]
    code = assemble(ISA, ";".join(items))
    for _ in range(ITEMS):
        match chance.choices(("plain", "control", "leap", "system", "trap"), (75, 12, 4, 5, 4))[0]:
            case "plain":
                code += operation(chance.choice(plain), chance)
            case "control":
                code += skip(chance.choice(control), chance)
            case "leap":
                code += leap(chance)
            case "system":
                code += assemble(ISA, chance.choice(SYSTEM))
            case "trap":
                code += assemble(ISA, chance.choice(TRAPS))
    return code + assemble(ISA, ";".join(f"sw x{n},{REACH + 4 * n}(x30)" for n in range(30)))


def image(code: bytes) -> bytes:
    """What lies at RAM: set-up, the handler at +0x80, the program at +0x100, what follows it at its end."""
    setup = assemble(ISA, f"li x1,{RAM + 0x80:#x}; csrrw x0,mtvec,x1; csrrw x0,mscratch,x0; jal x0,{0x100 - 0x10}")
    handler = assemble(ISA, HANDLER, RAM + 0x80)
    return setup.ljust(0x80, b"\0") + handler.ljust(0x80, b"\0") + code + assemble(ISA, SEND)


def by_qemu(code: bytes, folder) -> bytes:
    binary = folder / "program.bin"
    binary.write_bytes(image(code))
    loader = f"loader,file={binary},addr={RAM:#x}"
    cpu = "rv32,zba=true,zbb=true,zbs=true"
    command = [QEMU, "-M", "virt", "-cpu", cpu, "-bios", "none", "-nographic", "-monitor", "none", "-device", loader]
    return subprocess.run(command, check=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL).stdout


def by_us(code: bytes) -> tuple[bytes, Rig]:
    rig = Rig(isa=NAME)
    rig.bus.poke(RAM, image(code))
    rig.engine.code.add_hook(START + len(code), lambda hart: rig.engine.stop(Stop(StopReason.BREAKPOINT)))
    stop = rig.engine.run(1_000_000)
    assert stop is not None and stop.reason is StopReason.BREAKPOINT
    return rig.bus.peek(DATA, DUMPED), rig


@needs(QEMU)
@pytest.mark.parametrize("seed", range(5))
def test_registers_and_memory_are_those_of_qemu(seed, tmp_path):
    code = program(seed)
    ours, rig = by_us(code)
    theirs = by_qemu(code, tmp_path)
    assert rig.hart.traps > 50
    assert [int.from_bytes(ours[REACH + 4 * n :][:4], "little") for n in range(30)] == [
        int.from_bytes(theirs[REACH + 4 * n :][:4], "little") for n in range(30)
    ]
    assert ours == theirs
