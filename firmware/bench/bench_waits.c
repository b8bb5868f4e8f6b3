/* A loop that waits for a flag which the handler of a timer interrupt sets, a few thousand cycles later. */
#include "bench.h"
#include "trap.h"

BENCH_ROUNDS(50000)
NPU_ARG(1, period, 20)

enum { TIMER = 7 };

static volatile uint32_t ticks;
static uint32_t period;

static void set_timer(uint32_t from_now)
{
    volatile uint32_t *compare = (volatile uint32_t *)(NPU_MAP_CLINT_BASE + 0x4000);
    volatile uint32_t *time = (volatile uint32_t *)(NPU_MAP_CLINT_BASE + 0xBFF8);
    compare[1] = 0;
    compare[0] = time[0] + from_now; /* runs are too short for its upper half */
}

static void tick(void)
{
    ticks++;
    set_timer(period);
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    period = arg_period();
    trap_on_interrupt(TIMER, tick);
    set_timer(period);
    __asm__ volatile("csrsi mstatus, 8");
    uint32_t sum = 0;
    for (uint32_t round = 1; round <= rounds; round++) {
        while (ticks < round) {
        }
        sum = random_next(sum + round);
    }
    __asm__ volatile("csrci mstatus, 8");
    return finish("waits", rounds == FULL_ROUNDS, sum, 0xb3506638);
}
