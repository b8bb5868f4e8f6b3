/* Software floating point by libgcc for a hart without F and D, in double and single precision. */
#include "bench.h"

BENCH_ROUNDS(400000)

static volatile double slope = 0.75; /* opaque to the compiler */

int main(void)
{
    const uint32_t rounds = arg_rounds();
    double sum = 0, x = 0.5;
    float product = 1;
    uint32_t below = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        x = slope * x * (1 - x) * 4; /* logistic map: stays in (0, 1) */
        sum += x / (1 + (double)round);
        product = product * (1 + (float)x * 0.0001f);
        if (product > 2) {
            product -= 1;
        }
        below += x < 0.5;
    }
    union {
        double value;
        uint32_t words[2];
    } bits = {sum};
    union {
        float value;
        uint32_t word;
    } single = {product};
    return finish("float", rounds == FULL_ROUNDS, bits.words[0] ^ bits.words[1] ^ single.word ^ below, 0xfcd881d1);
}
