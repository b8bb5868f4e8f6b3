/* CSR accesses: alternating reads and writes of mscratch, as in a context switch. */
#include "bench.h"

BENCH_ROUNDS(5000000)

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t old;
        __asm__ volatile("csrr %0, mscratch" : "=r"(old));
        sum = sum * 3 + old;
        __asm__ volatile("csrw mscratch, %0" ::"r"(sum ^ round));
    }
    return finish("csr", rounds == FULL_ROUNDS, sum, 0x55168dba);
}
