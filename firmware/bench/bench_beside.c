/* Stores to data in the page of the running code, a few cache lines away from it. */
#include "bench.h"

BENCH_ROUNDS(600000)

__asm__(".pushsection .text\n"
        ".balign 256\n"
        ".space 128\n"
        "beside: .space 128\n"
        ".popsection");
extern volatile uint32_t beside[];

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        beside[round % 16] = sum;
        sum = random_next(sum) ^ beside[(round + 5) % 16];
    }
    return finish("beside", rounds == FULL_ROUNDS, sum, 0x77c3a3fc);
}
