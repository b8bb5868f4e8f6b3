/* Atomics: a lock by amoswap, a counter by amoadd, and another by LR and SC. */
#include "bench.h"

BENCH_ROUNDS(100000000)

__asm__(".option arch, +a"); /* independent of -march */

static volatile uint32_t lock, counter, reserved;

int main(void)
{
    const uint32_t rounds = arg_rounds();
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t taken;
        do {
            __asm__ volatile("amoswap.w.aq %0, %1, (%2)" : "=r"(taken) : "r"(1), "r"(&lock) : "memory");
        } while (taken != 0);
        counter += round;
        __asm__ volatile("amoswap.w.rl zero, zero, (%0)" ::"r"(&lock) : "memory");
        uint32_t failed;
        do {
            uint32_t value;
            __asm__ volatile("lr.w %0, (%1)" : "=r"(value) : "r"(&reserved) : "memory");
            __asm__ volatile("sc.w %0, %1, (%2)" : "=r"(failed) : "r"(value + 3), "r"(&reserved) : "memory");
        } while (failed != 0);
    }
    return finish("lock", rounds == FULL_ROUNDS, counter ^ reserved, 0x25042c80);
}
