/* Lines of text to the UART. */
#include "bench.h"

BENCH_ROUNDS(20000)

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        sum = random_next(sum);
        print("line %u: %08x\n", (unsigned)round, (unsigned)sum);
    }
    return finish("lines", rounds == FULL_ROUNDS, sum, 0xaa6902a0);
}
