/* Self-modifying code: repeatedly written, published by fence.i, and called. */
#include "bench.h"

BENCH_ROUNDS(20000)

__asm__(".option arch, +zifencei"); /* independent of -march */

enum { ADDI_A0_A0 = 0x00050513, RET = 0x00008067 };

static uint32_t code[16] __attribute__((aligned(64)));

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t (*volatile function)(uint32_t) = (uint32_t(*)(uint32_t))(uintptr_t)code;
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        code[0] = ADDI_A0_A0 | round % 1024 << 20;
        code[1] = RET;
        __asm__ volatile("fence.i" ::: "memory");
        sum = function(sum) * 3;
    }
    return finish("patch", rounds == FULL_ROUNDS, sum, 0x3941fbb0);
}
