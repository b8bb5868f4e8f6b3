/* Sequentially consistent atomics, as compilers emit them: compare-and-exchange between full fences. */
#include "bench.h"

BENCH_ROUNDS(10000000)

__asm__(".option arch, +a"); /* independent of -march */

static volatile uint32_t shared;

static inline void fence(void)
{
    __asm__ volatile("fence iorw, iorw" ::: "memory");
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t failed;
        fence();
        uint32_t expected = shared;
        fence();
        do {
            uint32_t seen;
            __asm__ volatile("lr.w.aqrl %0, (%1)" : "=r"(seen) : "r"(&shared) : "memory");
            failed = seen != expected;
            if (!failed) {
                __asm__ volatile("sc.w.rl %0, %1, (%2)"
                                 : "=r"(failed)
                                 : "r"(expected * 3 + round), "r"(&shared)
                                 : "memory");
            }
        } while (failed != 0);
        fence();
    }
    return finish("fences", rounds == FULL_ROUNDS, shared, 0x32411140);
}
