/* Idle loop: repeated WFI until the timer interrupt of the CLINT. */
#include "bench.h"
#include "timer.h"

BENCH_ROUNDS(100000)
NPU_ARG(1, period, 10)

int main(void)
{
    const uint32_t rounds = arg_rounds();
    start_ticks(arg_period());
    while (ticks < rounds) {
        __asm__ volatile("wfi");
    }
    interrupts_off();
    return finish("idle", rounds == FULL_ROUNDS, rounds, FULL_ROUNDS);
}
