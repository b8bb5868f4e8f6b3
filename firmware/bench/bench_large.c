/* Large code: 1,024 functions with distinct constants, about 90,000 instructions, each called a few times. */
#include "bench.h"

BENCH_ROUNDS(4)

static uint32_t data[64];

#define STEP(n)                              \
    x = x * (2u * (n) + 3u) + ((n) << 4);    \
    if (x & 1u << (n) % 16) {                \
        data[(n) % 64] ^= x;                 \
    } else {                                 \
        x += data[(n) * 7 % 64] + (n);       \
    }                                        \
    x ^= x >> ((n) % 13 + 1);
#define FUNCTION(n)                                                          \
    uint32_t function_##n(uint32_t x)                                        \
    {                                                                        \
        STEP(n) STEP(n + 1021) STEP(n + 2039) STEP(n + 3061)                 \
        return x;                                                            \
    }
#define NAME(n) function_##n,

/* Expand a macro for 16, 256 and 1,024 numbers. Macros do not expand recursively, so each level has its own. */
#define DIGITS(each, n)                                                              \
    each(n##0) each(n##1) each(n##2) each(n##3) each(n##4) each(n##5) each(n##6)     \
    each(n##7) each(n##8) each(n##9) each(n##a) each(n##b) each(n##c) each(n##d)     \
    each(n##e) each(n##f)
#define MORE_DIGITS(each, n)                                                         \
    each(n##0) each(n##1) each(n##2) each(n##3) each(n##4) each(n##5) each(n##6)     \
    each(n##7) each(n##8) each(n##9) each(n##a) each(n##b) each(n##c) each(n##d)     \
    each(n##e) each(n##f)
#define FUNCTIONS(n) DIGITS(FUNCTION, n)
#define NAMES(n) DIGITS(NAME, n)
#define ALL(each) MORE_DIGITS(each, 0x0) MORE_DIGITS(each, 0x1) MORE_DIGITS(each, 0x2) MORE_DIGITS(each, 0x3)

ALL(FUNCTIONS)

static uint32_t (*const functions[])(uint32_t) = {ALL(NAMES)};

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t number = 0; number < sizeof functions / sizeof *functions; number++) {
            sum = functions[number](sum);
        }
    }
    return finish("large", rounds == FULL_ROUNDS, sum, 0xa51c1d22);
}
