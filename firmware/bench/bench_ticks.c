/* Work under timer interrupts: a CRC of numbers while the CLINT interrupts every `period` counts of mtime. The
   result does not depend on their timing. */
#include "bench.h"
#include "timer.h"

BENCH_ROUNDS(40000000)
NPU_ARG(1, period, 100)

int main(void)
{
    const uint32_t rounds = arg_rounds();
    start_ticks(arg_period());
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        sum = (sum ^ round) * 16777619u;
        sum ^= sum >> 15;
    }
    interrupts_off();
    return finish("ticks", rounds == FULL_ROUNDS, sum, 0xcd57eaf7) || (rounds == FULL_ROUNDS && ticks < 100);
}
