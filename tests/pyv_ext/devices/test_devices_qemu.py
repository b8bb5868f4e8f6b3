"""The same register accesses on QEMU's `virt` machine and on our bus: values read, mip and console must agree.

Left out is where QEMU 7.2 departs from the PLIC specification (the threshold masks claims, a completion does not look
at the level again and counts for disabled sources, a write of the enable bits does not update the interrupt) and what
passes with QEMU's clock (mtime, the receiver's timeout). That clock counts instructions here, 1 ns each: were it the
host's, a machine that is slow for 0.4 ms would let received characters time out.
"""

import random
from pathlib import Path
from typing import NamedTuple

import device_oracles as oracles
import pytest
from device_rig import CLINT, FINISHER, PLIC, UART, UART_SOURCE, Machine, Rig
from native_forms import NATIVE_FORMS

from pyv_ext.timing import CoreTiming

PRIORITY, PENDING, ENABLE = PLIC + 4 * UART_SOURCE, PLIC + 0x1000, PLIC + 0x2000
THRESHOLD, CLAIM = PLIC + 0x20_0000, PLIC + 0x20_0004
DATA, IER, IIR, LCR, MCR, LSR, MSR, SCR = range(UART, UART + 8)
FCR = IIR
LINES = 1 << 3 | 1 << 7 | 1 << 11
MARK = "|"


class Op(NamedTuple):
    mnemonic: str
    address: int = 0
    value: int = 0


def sb(address: int, value: int) -> Op:
    return Op("sb", address, value)


def lb(address: int) -> Op:
    return Op("lbu", address)


def sw(address: int, value: int) -> Op:
    return Op("sw", address, value)


def lw(address: int) -> Op:
    return Op("lw", address)


MIP = Op("mip")
SIZES = {"sb": 1, "lbu": 1, "sw": 4, "lw": 4}


def on_ours(script: list[Op]) -> tuple[str, list[int]]:
    rig = Rig()
    values = []
    for op in script:
        if op is MIP:
            values.append(rig.mip)
        elif op.mnemonic.startswith("s"):
            assert rig.store(op.address, op.value, SIZES[op.mnemonic]), f"{op} faults"
        else:
            value = rig.load(op.address, SIZES[op.mnemonic])
            assert value is not None, f"{op} faults"
            values.append(value)
    return rig.uart.text, values


def as_program(script: list[Op], folder: Path) -> Path:
    """The same accesses by a hart, which prints what it has read behind a mark."""
    lines = [".globl _start", "_start:", "la s0, results", "mv s1, s0"]
    # QEMU resets mtimecmp to 0 and MCR to OUT2.
    lines += [f"li t0, {CLINT + 0x4004:#x}", "li t1, -1", "sw t1, 0(t0)", f"li t0, {MCR:#x}", "sb zero, 0(t0)"]
    for op in script:
        if op is MIP:
            lines += ["csrr t1, mip", f"li t2, {LINES:#x}", "and t1, t1, t2"]
        else:
            lines += [f"li t0, {op.address:#x}", f"li t1, {op.value:#x}", f"{op.mnemonic} t1, 0(t0)"]
        if not op.mnemonic.startswith("s"):
            lines += ["sw t1, 0(s1)", "addi s1, s1, 4"]
    lines.append(PRINT_RESULTS)
    return oracles.build(folder, "\n".join(lines))


def on_qemu(elf: Path) -> tuple[str, list[int]]:
    printed, code = oracles.qemu(elf, "-icount", "shift=0")
    assert code == 0
    return _results(printed)


def on_native(elf: Path, timing: CoreTiming, patch: pytest.MonkeyPatch) -> tuple[str, list[int]]:
    NATIVE_FORMS[1].choose(patch)
    machine = Machine(elf, timing, engine="fast")
    stop = machine.run()
    assert stop is not None and stop.code == 0
    return _results(machine.uart.text)


def _results(printed: str) -> tuple[str, list[int]]:
    text, _, results = printed.rpartition(MARK)
    return text, [int(word, 16) for word in results.split()]


PRINT_RESULTS = f"""
    li t0, {UART:#x}
    sb zero, 4(t0)      # no loopback
    sb zero, 3(t0)      # no divisor latch
    li t1, '{MARK}'
    sb t1, 0(t0)
next: beq s0, s1, done
    lw t1, 0(s0)
    addi s0, s0, 4
    li t2, 8
digit: srli t3, t1, 28
    slli t1, t1, 4
    la t4, digits
    add t4, t4, t3
    lbu t4, 0(t4)
    sb t4, 0(t0)
    addi t2, t2, -1
    bnez t2, digit
    li t4, ' '
    sb t4, 0(t0)
    j next
done: li t0, {FINISHER:#x}
    li t1, 0x5555
    sw t1, 0(t0)
    j .
digits: .ascii "0123456789abcdef"
.bss
results: .space 16384
"""

UART_RESET = [lb(offset) for offset in range(UART, UART + 8)]

LOOPBACK = [
    *(sb(MCR, 0x1F), lb(MCR), lb(MSR), sb(DATA, 0x5A), lb(LSR), lb(DATA), lb(LSR)),
    *(sb(FCR, 0x07), *(sb(DATA, byte) for byte in range(16)), lb(LSR)),
    *(lb(DATA) for _ in range(16)),
    *(lb(LSR), lb(DATA), sb(MCR, 0), lb(MSR)),
]

UART_INTERRUPTS = [
    *(sb(IER, 2), lb(IIR), lb(IIR), sb(DATA, 0x41), lb(IIR), lb(IIR), sb(IER, 0), sb(IER, 2), lb(IIR)),
    *(sb(MCR, 0x10), sb(IER, 3), sb(DATA, 0x42), lb(IIR), lb(IIR), lb(DATA), lb(IIR), lb(IIR), sb(IER, 0xFF), lb(IER)),
]

PLIC_SERVICE = [
    *(sw(PRIORITY, 1), sw(ENABLE, 1 << UART_SOURCE), MIP, lw(CLAIM), lw(PENDING)),
    *(sb(IER, 2), lw(PENDING), MIP, sw(THRESHOLD, 1), MIP, sw(THRESHOLD, 0), MIP, sw(PRIORITY, 0), MIP),
    *(sw(PRIORITY, 7), MIP, lw(CLAIM), MIP, lw(PENDING), lw(CLAIM)),
    *(lb(IIR), sw(CLAIM, UART_SOURCE), MIP, sb(DATA, 0x42), lw(PENDING), lb(IIR), lw(PENDING), lw(CLAIM)),
    *(sw(CLAIM, UART_SOURCE), MIP, lw(PENDING), sb(DATA, 0x43), lw(PENDING), MIP),
    *(sw(ENABLE, 0), lw(PENDING), lw(CLAIM), MIP),
]

WARL = [
    *(sw(PRIORITY, 0xFFFF_FFFF), lw(PRIORITY), sw(THRESHOLD, 0xFFFF_FFFF), lw(THRESHOLD), sw(ENABLE, 0), lw(ENABLE)),
    *(sw(CLINT, 0xFFFF_FFFF), lw(CLINT), MIP, sw(CLINT, 0xFFFF_FFFE), lw(CLINT), MIP),
    *(sb(SCR, 0xA5), lb(SCR), sb(LCR, 0x1B), lb(LCR)),
]

TIMER = [
    *(sw(CLINT + 0x4004, 0xFFFF_FFFF), sw(CLINT + 0x4000, 0xFFFF_FFFF), MIP),
    *(sw(CLINT + 0x4004, 0), sw(CLINT + 0x4000, 0), MIP, lw(CLINT + 0x4000), lw(CLINT + 0x4004)),
    *(sw(CLINT + 0x4004, 0x7FFF_FFFF), lw(CLINT + 0x4004), MIP),
]


WHAT = ("data",) * 3 + ("read",) * 2 + ("iir",) * 2 + ("status", "ier", "lcr", "mcr", "fcr", "scratch", "mip")


def random_uart(seed: int, length: int = 400) -> list[Op]:
    """Any accesses that do not overrun the receiver or need its timeout."""
    pick = random.Random(seed)
    script: list[Op] = []
    lcr = mcr = fcr = received = 0
    while len(script) < length:
        what = pick.choice(WHAT)
        if what == "data":
            looped = mcr & 0x10 and not lcr & 0x80
            if looped and received == (16 if fcr & 1 else 1):
                continue
            received += bool(looped)
            script.append(sb(DATA, pick.choice(b"abcdefgh")))
        elif what == "read":
            if not received and not lcr & 0x80:
                continue  # what an empty receiver returns is nowhere specified
            received -= not lcr & 0x80
            script.append(lb(DATA))
        elif what in ("status", "iir"):
            script.append(lb(IIR if what == "iir" else pick.choice([IER, LCR, MCR, LSR, MSR, SCR])))
        elif what == "ier":
            script.append(sb(IER, pick.randrange(4)))
        elif what == "lcr":
            lcr = pick.choice([0x03, 0x03, 0x83])
            script.append(sb(LCR, lcr))
        elif what == "mcr":
            mcr = pick.choice([0x00, 0x10]) | pick.randrange(16)
            script.append(sb(MCR, mcr))
        elif what == "fcr":
            value = pick.choice([0x00, 0x01, 0x01, 0x03, 0x05, 0x07])
            if (value ^ fcr) & 1 or value & 3 == 3:
                received = 0
            fcr = value & 1
            script.append(sb(FCR, value))
        elif what == "scratch":
            script.append(sb(SCR, pick.randrange(256)))
        else:
            script.append(MIP)
    return script


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(UART_RESET, id="uart-reset"),
        pytest.param(LOOPBACK, id="uart-loopback"),
        pytest.param(UART_INTERRUPTS, id="uart-interrupts"),
        pytest.param(PLIC_SERVICE, id="plic-service"),
        pytest.param(WARL, id="warl"),
        pytest.param(TIMER, id="timer"),
        *(pytest.param(random_uart(seed), id=f"uart-random-{seed}") for seed in range(8)),
    ],
)
def test_same_accesses_same_answers(script: list[Op], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, values = on_ours(script)
    elf = as_program(script, tmp_path)
    their_text, their_values = on_qemu(elf)
    reads = [op for op in script if not op.mnemonic.startswith("s")]
    assert len(values) == len(reads) == len(their_values)
    differ = [
        (index, op, hex(a), hex(b))
        for index, (op, a, b) in enumerate(zip(reads, values, their_values, strict=True))
        if a != b
    ]
    assert differ == []
    assert text == their_text
    assert on_native(elf, CoreTiming(), monkeypatch) == (text, values)
    if MIP not in script:  # whose bits change some cycles after a store
        assert on_native(elf, CoreTiming(mmio_one_way=3, mmio_read=8, plic=1), monkeypatch) == (text, values)


@pytest.mark.parametrize(("value", "size"), [(0x5555, "w"), (0x5555, "h"), (0x2A_3333, "w"), (0x3333, "w")])
def test_finisher_exit_codes(value: int, size: str, tmp_path: Path) -> None:
    source = f".globl _start\n_start: li t0, {FINISHER:#x}\nli t1, {value:#x}\ns{size} t1, 0(t0)\nj .\n"
    rig = Rig()
    assert rig.store(FINISHER, value, {"w": 4, "h": 2}[size])
    assert rig.exits == [oracles.qemu(oracles.build(tmp_path, source))[1]]
