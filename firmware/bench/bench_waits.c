/* Polling loop on a flag that a timer interrupt handler sets a few thousand cycles later. */
#include "bench.h"
#include "timer.h"

BENCH_ROUNDS(50000)
NPU_ARG(1, period, 20)

int main(void)
{
    const uint32_t rounds = arg_rounds();
    start_ticks(arg_period());
    uint32_t sum = 0;
    for (uint32_t round = 1; round <= rounds; round++) {
        while (ticks < round) {
        }
        sum = random_next(sum + round);
    }
    interrupts_off();
    return finish("waits", rounds == FULL_ROUNDS, sum, 0xb3506638);
}
