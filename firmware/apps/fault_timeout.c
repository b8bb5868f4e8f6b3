/* Waits that fail (timeouts, unknown tickets, failed tickets), and waits that are interrupted. */
#include "busy.h"
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_NEEDS_SPM(BUSY_SPM);

enum {
    UNIT = NPU_TWAIT_TIMEOUT_UNIT,
    UNKNOWN = 0x7ffffff0, /* a ticket that does not exist */
    CLINT_MTIMECMP = 0x4000,
    CLINT_MTIME = 0xbff8,
};

static uint32_t slack; /* permitted cycles beyond a timeout: a few register reads */

static volatile uint32_t timer_calls;

static void timer_off(void)
{
    mmio_write32(NPU_MAP_CLINT_BASE + CLINT_MTIMECMP + 4, 0xffffffff);
}

static void timer_in(uint32_t ticks)
{
    uint32_t now = mmio_read32(NPU_MAP_CLINT_BASE + CLINT_MTIME);
    mmio_write32(NPU_MAP_CLINT_BASE + CLINT_MTIMECMP, now + ticks);
    mmio_write32(NPU_MAP_CLINT_BASE + CLINT_MTIMECMP + 4, 0);
}

static void on_timer(void)
{
    timer_calls++;
    timer_off();
}

static uint32_t timed_wait(int32_t ticket, uint32_t units, int32_t *result)
{
    uint32_t start = cycles();
    *result = npu_wait_for(ticket, units);
    return cycles() - start;
}

/* Keep the device busy for longer than waits of `units`. Callers print only after the waits, as printing takes time. */
static int32_t busy_beyond(uint32_t units)
{
    return busy_for(2 * units * (UNIT + slack));
}

/* Check the waits that both modes offer. */
static void driver_waits(void)
{
    int32_t one_unit, three_units;
    int32_t ticket = busy_beyond(1 + 3);
    uint32_t one_unit_cycles = timed_wait(ticket, 1, &one_unit);
    uint32_t three_unit_cycles = timed_wait(ticket, 3, &three_units);
    int32_t state = npu_result(ticket);
    expect_equal("1 unit: ETIMEDOUT", (uint32_t)one_unit, (uint32_t)-NPU_ETIMEDOUT);
    expect_range("1 unit: cycles", one_unit_cycles, UNIT, UNIT + slack);
    expect_equal("3 units: ETIMEDOUT", (uint32_t)three_units, (uint32_t)-NPU_ETIMEDOUT);
    expect_range("3 units: cycles", three_unit_cycles, 3 * UNIT, 3 * (UNIT + slack));
    expect_equal("not complete", (uint32_t)state, (uint32_t)-NPU_EBUSY);
    expect_equal("a timeout longer than the command", (uint32_t)npu_wait_for(ticket, 1u << 16), 0);
    expect_equal("waiting again: waiting consumes nothing", (uint32_t)npu_wait(ticket), 0);

    int32_t unknown;
    uint32_t duration = timed_wait(UNKNOWN, 2, &unknown);
    expect_equal("unknown ticket: ENOENT", (uint32_t)unknown, (uint32_t)-NPU_ENOENT);
    expect_range("unknown ticket: at once", duration, 0, slack);
    expect_equal("ticket 0: ENOENT", (uint32_t)npu_wait(0), (uint32_t)-NPU_ENOENT);
    expect_equal("ticket -1: ENOENT", (uint32_t)npu_wait(-1), (uint32_t)-NPU_ENOENT);

    ticket = npu_submit(NPU_DESC(OPCODE, NPU_DESC_OPCODE_MASK), 0, 0, 0, 0, 0, 0, 0);
    expect_equal("failed ticket: its code", (uint32_t)npu_wait(ticket), (uint32_t)-NPU_E_OPCODE);
    expect_equal("failed ticket, with a timeout", (uint32_t)npu_wait_for(ticket, 1), (uint32_t)-NPU_E_OPCODE);
}

struct twait {
    int32_t result;
    uint32_t duration, handler_calls;
};

/* Execute TWAIT for two units, with a timer interrupt after about one unit. */
static struct twait twait_under_timer(int32_t ticket, uint32_t ticks, bool enabled)
{
    timer_calls = 0;
    timer_in(ticks);
    if (enabled) {
        interrupts_on();
    }
    uint32_t start = cycles();
    int32_t result = npu_twait(ticket, 2);
    uint32_t duration = cycles() - start;
    interrupts_off();
    timer_off();
    return (struct twait){result, duration, timer_calls};
}

/* Check that an enabled interrupt breaks TWAIT, which restarts with the same deadline; with MIE = 0 not. */
static void twait_interrupted(uint32_t ticks)
{
    int32_t ticket = busy_beyond(2 + 2);
    trap_on_interrupt(TRAP_TIMER, on_timer);
    struct twait interrupted = twait_under_timer(ticket, ticks, true);
    struct twait masked = twait_under_timer(ticket, ticks, false);
    trap_on_interrupt(TRAP_TIMER, NULL);
    npu_watchdog(true);
    uint32_t start = cycles();
    __asm__ volatile(".insn i %0, %1, x0, %2, 0" ::"i"(NPU_CUSTOM_OPCODE), "i"(NPU_TWAIT_FUNCT3), "r"(ticket) : "memory");
    uint32_t duration = cycles() - start;
    npu_watchdog(false);
    int32_t state = npu_result(ticket);

    expect_equal("interrupted TWAIT: handler calls", interrupted.handler_calls, 1);
    expect_equal("interrupted TWAIT: ETIMEDOUT", (uint32_t)interrupted.result, (uint32_t)-NPU_ETIMEDOUT);
    expect_range("interrupted TWAIT: cycles", interrupted.duration, 2 * UNIT, 2 * UNIT + slack);
    expect_equal("masked interrupt: handler calls", masked.handler_calls, 0);
    expect_equal("masked interrupt: ETIMEDOUT", (uint32_t)masked.result, (uint32_t)-NPU_ETIMEDOUT);
    expect_range("masked interrupt: cycles", masked.duration, 2 * UNIT, 2 * UNIT + slack);
    print("TWAIT into x0 waited for %u cycles\n", (unsigned)duration);
    expect_equal("TWAIT into x0 waits until it is done", (uint32_t)state, 0);
}

/* Measure the cycles per tick of mtime. */
static uint32_t divider(void)
{
    enum { TICKS = 8 };
    uint32_t first = mmio_read32(NPU_MAP_CLINT_BASE + CLINT_MTIME), now;
    do {
        now = mmio_read32(NPU_MAP_CLINT_BASE + CLINT_MTIME);
    } while (now == first);
    uint32_t start = cycles();
    while (mmio_read32(NPU_MAP_CLINT_BASE + CLINT_MTIME) - now < TICKS) {
    }
    return (cycles() - start + TICKS / 2) / TICKS;
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    uint32_t start = cycles();
    (void)npu_result(UNKNOWN);
    slack = 4 * (cycles() - start) + 200;
    print("mode %s\n", npu.tight ? "tight" : "loose");
    driver_waits();
    if (npu.tight && (npu.caps & NPU_CAPS_TWAIT) != 0) {
        twait_interrupted(UNIT / divider());
    }
    return expect_result("fault_timeout");
}

NPU_NOISE("waited for # cycles");
