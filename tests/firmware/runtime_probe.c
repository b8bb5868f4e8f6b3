/* Exercises the runtime on QEMU: what it prints is compared by test_runtime.py. */
#include "expect.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG(3, answer, 42)

enum { CLINT_MTIMECMP = 0x4000, CLINT_MTIME = 0xbff8, TIMER_CALLS = 20, UNMAPPED = 0 };

extern const uint32_t lost_registers_site;
uint32_t lost_registers(void);

static volatile uint32_t timer_calls, nested_faults;
static volatile uint64_t dividend = 1000000000000000000u;
static volatile uint64_t divisor = 1000000007u;
static uint32_t zeros[64];
static volatile uint32_t seven = 7;

static void arm(uint32_t ticks)
{
    uint32_t now = mmio_read32(NPU_MAP_CLINT_BASE + CLINT_MTIME);
    mmio_write32(NPU_MAP_CLINT_BASE + CLINT_MTIMECMP + 4, 0);
    mmio_write32(NPU_MAP_CLINT_BASE + CLINT_MTIMECMP, now + ticks);
}

/* An exception inside a handler must not disturb what the handler returns to. */
static void on_timer(void)
{
    uint32_t word;
    nested_faults += !trap_probe_read(UNMAPPED, &word);
    timer_calls++;
    if (timer_calls < TIMER_CALLS) {
        arm(200);
    } else {
        trap_on_interrupt(TRAP_TIMER, NULL);
    }
}

static uint32_t computation(void)
{
    uint32_t sum = 1;
    for (uint32_t i = 0; i < 2000; i++) {
        sum = sum * 1664525 + (sum >> 3) + i;
    }
    return sum;
}

int main(void)
{
    print("[%d] [%u] [%x] [%c] [%s] [%%]\n", -2147483647 - 1, 4294967295u, 0xdeadbeefu, 'z', "text");
    print("[%5d] [%05d] [%08x] [%6s]\n", -42, 42, 0xbeefu, "ab");
    print("[%llu] [%llx] [%lld]\n", 18446744073709551615ull, 0x123456789abcdefull, -1ll);
    print("%s\n", "a line that is longer than the buffer of the console, which holds 128 characters, and therefore "
                  "leaves in more than one piece without losing a character");
    print("quotient %llu\n", (unsigned long long)(dividend / divisor));
    print("argument %u, data %u\n", (unsigned)arg_answer(), (unsigned)seven);

    uint32_t sum = 0;
    for (uint32_t i = 0; i < 64; i++) {
        sum += zeros[i];
    }
    expect_equal("bss", sum, 0);

    trap_record_start();
    uint32_t lost = lost_registers();
    trap_record_stop();
    expect_equal("registers lost in an exception", lost, 0);
    expect_equal("mepc", trap_record.mepc, (uint32_t)(uintptr_t)&lost_registers_site);
    expect_equal("mcause", trap_record.cause, TRAP_ILLEGAL);
    expect_equal("a word that is no instruction", trap_word(0xffffffff, 0, 0), false);
    expect_equal("its mtval", trap_record.mtval, 0xffffffff);
    expect_equal("a word that is one (addi a0, a0, 1)", trap_word(0x00150513, 1, 0), true);
    expect_equal("ebreak", trap_word(0x00100073, 0, 0), false);
    expect_equal("its mcause", trap_record.cause, TRAP_BREAKPOINT);
    uint32_t word;
    expect_equal("a probe of nothing", trap_probe_read(UNMAPPED, &word), false);
    expect_equal("a probe of RAM", trap_probe_read((uintptr_t)&seven, &word), true);
    expect_equal("what it reads", word, 7);

    uint32_t wanted = computation();
    trap_on_interrupt(TRAP_TIMER, on_timer);
    arm(100);
    interrupts_on();
    uint32_t disturbed = 0;
    while (timer_calls < TIMER_CALLS) {
        disturbed += computation() != wanted;
    }
    interrupts_off();
    expect_equal("computations disturbed by interrupts", disturbed, 0);
    expect_equal("timer interrupts", timer_calls, TIMER_CALLS);
    expect_equal("exceptions inside the handler", nested_faults, TIMER_CALLS);
    return expect_result("runtime");
}
