/* Code generator: functions of 16 instructions with distinct constants are written into a few buffers, published
   by fence.i, and called once. */
#include "bench.h"

BENCH_ROUNDS(40000)

__asm__(".option arch, +zifencei"); /* independent of -march */

enum { ADDI_A0_A0 = 0x00050513, RET = 0x00008067, LENGTH = 16, BUFFERS = 8 };

static uint32_t code[BUFFERS][64] __attribute__((aligned(64)));

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t *buffer = code[round % BUFFERS];
        for (uint32_t place = 0; place < LENGTH; place++) {
            buffer[place] = ADDI_A0_A0 | (round * 7 + place) % 2048 << 20;
        }
        buffer[LENGTH] = RET;
        __asm__ volatile("fence.i" ::: "memory");
        uint32_t (*volatile function)(uint32_t) = (uint32_t(*)(uint32_t))(uintptr_t)buffer;
        sum = function(sum) * 3;
    }
    return finish("generate", rounds == FULL_ROUNDS, sum, 0x51215e00);
}
