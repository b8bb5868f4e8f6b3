/* Loads and stores of words at misaligned addresses. Needs a hart that supports them. */
#include "bench.h"

BENCH_ROUNDS(200000)

static uint8_t bytes[64];

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        uint8_t *place = bytes + 4 * (round % 8) + round % 3 + 1, *other = bytes + 33;
        uint32_t word;
        __asm__ volatile("lw %0, 0(%1)" : "=r"(word) : "r"(place) : "memory");
        sum = (sum + word) * 5 + round;
        __asm__ volatile("sw %0, 0(%1)" ::"r"(sum), "r"(other) : "memory");
        __asm__ volatile("sw %0, 0(%1)" ::"r"(sum ^ word), "r"(place) : "memory");
    }
    return finish("misaligned", rounds == FULL_ROUNDS, sum, 0xc0f3959);
}
