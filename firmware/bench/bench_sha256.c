/* SHA-256 (FIPS 180-4) of a message of random words, 64 bytes a round: long branch-free arithmetic. */
#include "bench.h"

BENCH_ROUNDS(60000)

enum { WORDS = 16, STATE = 8, STEPS = 64 };

static const uint32_t constants[STEPS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static const uint32_t start[STATE] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t rotate(uint32_t value, int bits)
{
    return value >> bits | value << (32 - bits);
}

/* Process a block of 64 bytes, given as 16 big-endian words. */
static void block(uint32_t state[STATE], const uint32_t words[WORDS])
{
    uint32_t w[STEPS];
    for (int i = 0; i < WORDS; i++) {
        w[i] = words[i];
    }
    for (int i = WORDS; i < STEPS; i++) {
        uint32_t before = w[i - 15], last = w[i - 2];
        uint32_t s0 = rotate(before, 7) ^ rotate(before, 18) ^ before >> 3;
        uint32_t s1 = rotate(last, 17) ^ rotate(last, 19) ^ last >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
#pragma GCC unroll 8
    for (int i = 0; i < STEPS; i++) {
        uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
        uint32_t one = h + s1 + ((e & f) ^ (~e & g)) + constants[i] + w[i];
        uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
        uint32_t two = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + one;
        d = c;
        c = b;
        b = a;
        a = one + two;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    static uint32_t words[WORDS];
    uint32_t state[STATE], seed = 1;
    for (int i = 0; i < STATE; i++) {
        state[i] = start[i];
    }
    for (uint32_t round = 0; round < rounds; round++) {
        for (int i = 0; i < WORDS; i++) {
            words[i] = seed = random_next(seed);
        }
        block(state, words);
    }
    for (int i = 0; i < WORDS; i++) { /* padding: a one bit, zeros, the length in bits */
        words[i] = 0;
    }
    words[0] = 0x80000000u;
    words[WORDS - 2] = rounds >> 23;
    words[WORDS - 1] = rounds << 9;
    block(state, words);
    uint32_t checksum = 0;
    for (int i = 0; i < STATE; i++) {
        checksum = rotate(checksum, 1) ^ state[i];
    }
    return finish("sha256", rounds == FULL_ROUNDS, checksum, 0xfb352440);
}
