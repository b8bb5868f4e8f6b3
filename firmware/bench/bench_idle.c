/* An idle loop: WFI until the timer of the CLINT comes, again and again. */
#include "bench.h"
#include "trap.h"

BENCH_ROUNDS(100000)
NPU_ARG(1, period, 10)

enum { TIMER = 7 };

static volatile uint32_t ticks;
static uint32_t period;

static void set_timer(void)
{
    volatile uint32_t *compare = (volatile uint32_t *)(NPU_MAP_CLINT_BASE + 0x4000);
    volatile uint32_t *time = (volatile uint32_t *)(NPU_MAP_CLINT_BASE + 0xBFF8);
    compare[1] = 0;
    compare[0] = time[0] + period;
}

static void tick(void)
{
    ticks++;
    set_timer();
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    period = arg_period();
    trap_on_interrupt(TIMER, tick);
    set_timer();
    __asm__ volatile("csrsi mstatus, 8");
    while (ticks < rounds) {
        __asm__ volatile("wfi");
    }
    __asm__ volatile("csrci mstatus, 8");
    return finish("idle", rounds == FULL_ROUNDS, rounds, FULL_ROUNDS);
}
