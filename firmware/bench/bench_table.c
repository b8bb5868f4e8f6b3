/* Functions called through a table, as in interpreters and state machines: consecutive indirect jumps to many
   targets. */
#include "bench.h"

BENCH_ROUNDS(4000000)

#define FOR_16(M, n)                                                                                                 \
    M(n##0) M(n##1) M(n##2) M(n##3) M(n##4) M(n##5) M(n##6) M(n##7)                                                  \
    M(n##8) M(n##9) M(n##a) M(n##b) M(n##c) M(n##d) M(n##e) M(n##f)
#define FOR_256(M)                                                                                                   \
    FOR_16(M, 0x0) FOR_16(M, 0x1) FOR_16(M, 0x2) FOR_16(M, 0x3) FOR_16(M, 0x4) FOR_16(M, 0x5) FOR_16(M, 0x6)         \
    FOR_16(M, 0x7) FOR_16(M, 0x8) FOR_16(M, 0x9) FOR_16(M, 0xa) FOR_16(M, 0xb) FOR_16(M, 0xc) FOR_16(M, 0xd)         \
    FOR_16(M, 0xe) FOR_16(M, 0xf)

/* 256 functions of the same form with distinct constants. */
#define DEFINE(n)                                                     \
    static __attribute__((noinline)) uint32_t function_##n(uint32_t x) \
    {                                                                 \
        return (x ^ (n) * 0x01010101u) * ((n) * 2 + 1) + (x >> ((n) % 31 + 1)); \
    }
FOR_256(DEFINE)

#define ENTRY(n) function_##n,
static uint32_t (*const table[256])(uint32_t) = {FOR_256(ENTRY)};

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t x = 1;
    for (uint32_t round = 0; round < rounds; round++) {
        x = table[(x >> 7 ^ round) & 255](x + round);
    }
    return finish("table", rounds == FULL_ROUNDS, x, 0x1fe1f1a3);
}
