/* Register arithmetic only: mixing, shifting, counting and multiplying in one loop. */
#include "bench.h"

BENCH_ROUNDS(400000000)

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t a = 0x243F6A88, b = 0x85A308D3, c = 0x13198A2E, d = 0x03707344;
    for (uint32_t round = rounds; round > 0; round--) {
        a += b;
        d ^= a;
        d = d << 16 | d >> 16;
        c += d;
        b ^= c;
        b = b << 12 | b >> 20;
        a += b ^ round;
        d ^= a;
        d = d << 8 | d >> 24;
        c += d * 9;
        b ^= c;
        b = b << 7 | b >> 25;
        if ((int32_t)(a ^ d) < 0) {
            c -= a & 0xFF;
        }
    }
    return finish("alu", rounds == FULL_ROUNDS, a ^ b ^ c ^ d, 0xa435620f);
}
