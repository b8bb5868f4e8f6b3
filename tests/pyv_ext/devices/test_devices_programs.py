"""The same programs on QEMU and on our hart with our devices: what they print, and how they end."""

from pathlib import Path

import device_oracles as oracles
import pytest
from device_rig import RAM, Machine
from native_forms import NATIVE_FORMS, Form

from pyv_ext.devices.program_exit import Htif
from pyv_ext.elf import read_elf
from pyv_ext.engines.stop import StopReason
from pyv_ext.timing import CoreTiming

RUNTIME = """
#include <stdint.h>
#define REG8(address) (*(volatile uint8_t *)(address))
#define REG(address) (*(volatile uint32_t *)(address))
#define UART 0x10000000u
#define FINISHER 0x100000u
#define MSIP 0x2000000u
#define MTIMECMP 0x2004000u
#define PLIC 0xc000000u
#define CLAIM (PLIC + 0x200004u)
#define CSR_SET(name, bits) __asm__ volatile("csrs " #name ", %0" :: "r"(bits) : "memory")
#define CSR_CLEAR(name, bits) __asm__ volatile("csrc " #name ", %0" :: "r"(bits) : "memory")

__asm__(".section .start, \\"ax\\"\\n.globl _start\\n_start: la sp, stack + 4096\\n"
        "la t0, trap\\ncsrw mtvec, t0\\ncall main\\n"
        "slli a0, a0, 16\\nli t0, 0x3333\\nor a0, a0, t0\\nli t0, 0x100000\\nsw a0, 0(t0)\\nj .\\n.text\\n");
char stack[4096] __attribute__((aligned(16)));

static void put(const char *text) { while (*text) REG8(UART) = *text++; }

static void put_hex(uint32_t value)
{
    for (int shift = 28; shift >= 0; shift -= 4)
        REG8(UART) = "0123456789abcdef"[value >> shift & 15];
    put("\\n");
}

static uint32_t cause(void)
{
    uint32_t value;
    __asm__ volatile("csrr %0, mcause" : "=r"(value));
    return value;
}
"""

INTERRUPTS = """
volatile uint32_t handled;
const char *volatile next = "sent by interrupts\\n";

__attribute__((interrupt, aligned(4), used)) void trap(void)
{
    uint32_t why = cause();
    if (why == 0x80000003)
        REG(MSIP) = 0;
    else if (why == 0x80000007)
        REG(MTIMECMP + 4) = -1;
    else if (why == 0x8000000b) {
        uint32_t source = REG(CLAIM);
        (void)REG8(UART + 2);
        if (*next)
            REG8(UART) = *next++;
        else
            REG8(UART + 1) = 0;
        REG(CLAIM) = source;
        if (*next)
            return;
    }
    put("mcause ");
    put_hex(why);
    handled++;
}

static void wait_for(uint32_t count)
{
    while (handled < count) {
        __asm__ volatile("wfi" ::: "memory");
        CSR_SET(mstatus, 8);
        CSR_CLEAR(mstatus, 8);
    }
}

int main(void)
{
    REG(MTIMECMP + 4) = -1;
    CSR_SET(mie, 0x888);
    REG(MSIP) = 1;
    wait_for(1);
    REG(MTIMECMP) = 0;
    REG(MTIMECMP + 4) = 0;
    wait_for(2);
    REG(PLIC + 4 * 10) = 1;
    REG(PLIC + 0x2000) = 1 << 10;
    REG8(UART + 1) = 2;
    wait_for(3);
    return 42;
}
"""

FAULTS = """
volatile uint32_t expected;

__attribute__((interrupt, aligned(4), used)) void trap(void)
{
    uint32_t value;
    __asm__ volatile("csrr %0, mtval" : "=r"(value));
    put("mcause ");
    put_hex(cause());
    put("mtval ");
    put_hex(value);
    __asm__ volatile("csrr %0, mepc\\n addi %0, %0, 4\\n csrw mepc, %0" : "=&r"(value));
}

int main(void)
{
    __asm__ volatile("lw zero, 0(%0)" :: "r"(0x08000000));
    __asm__ volatile("sw zero, 0(%0)" :: "r"(0x08000004));
    put("done\\n");
    return 0;
}
"""


def linked(folder: Path, program: str) -> Path:
    return oracles.build(
        folder, RUNTIME + program, "-Wl,--section-start=.start=0x80000000,-Ttext=0x80000100", suffix=".c"
    )


@pytest.mark.parametrize(
    "timing", [CoreTiming(), CoreTiming(mmio_one_way=60, mmio_read=120, plic=15, irq=4)], ids=["ideal", "slow bus"]
)
@pytest.mark.parametrize("program", [INTERRUPTS, FAULTS], ids=["interrupts", "faults"])
def test_prints_and_ends_as_on_qemu(
    program: str, timing: CoreTiming, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elf = linked(tmp_path, program)
    text, code = oracles.qemu(elf)
    for form in (Form("reference"), *NATIVE_FORMS):
        with monkeypatch.context() as patch:
            form.choose(patch)
            machine = Machine(elf, timing, engine=form.engine)
            stop = machine.run()
        assert machine.uart.text == text, str(form)
        assert stop is not None
        assert (stop.reason, stop.code) == (StopReason.EXIT, code)


HTIF = """
    .globl _start, tohost, fromhost
_start:
    la a0, block
    la a1, text
    sw a1, 16(a0)
    la t0, tohost
    {first}
    {second}
wait:
    la t1, fromhost
    lw t2, 0(t1)
    beqz t2, wait
    sw zero, 0(t1)
    lw t2, 0(a0)        # the result of write
    slli t2, t2, 1
    ori t2, t2, 1
exit:
    sw t2, 0(t0)
    sw zero, 4(t0)
    j exit
    .data
    .align 6
tohost: .dword 0
    .align 6
fromhost: .dword 0
    .align 6
block: .dword 64, 1, 0, 5
text: .ascii "hello"
"""


@pytest.mark.parametrize(
    "stores", [("sw a0, 0(t0)", "sw zero, 4(t0)"), ("sw zero, 4(t0)", "sw a0, 0(t0)"), ("sw a0, 0(t0)", "")]
)
def test_htif_from_a_program(stores: tuple[str, str], tmp_path: Path) -> None:
    elf = oracles.build(tmp_path, HTIF.format(first=stores[0], second=stores[1]))
    machine = Machine(elf)
    symbols = read_elf(elf).symbols
    Htif(machine.bus, symbols["tohost"].address, symbols["fromhost"].address, machine.uart.console, machine._exit)
    assert symbols["tohost"].address > RAM
    stop = machine.run()
    assert stop is not None
    assert (stop.reason, stop.code, machine.uart.text) == (StopReason.EXIT, 5, "hello")
