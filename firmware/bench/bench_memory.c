/* Loops over memory: copy by words and bytes, fill, compare, sum with a stride. */
#include "bench.h"

BENCH_ROUNDS(80000)

enum { WORDS = 8192 };

static uint32_t source[WORDS], target[WORDS];

static __attribute__((noinline)) void copy_words(uint32_t *to, const uint32_t *from, size_t count)
{
    while (count-- > 0) {
        *to++ = *from++;
        __asm__ volatile("" ::: "memory"); /* prevents replacement by memcpy */
    }
}

static __attribute__((noinline)) void copy_words_by_four(uint32_t *to, const uint32_t *from, size_t count)
{
    for (; count >= 4; count -= 4, to += 4, from += 4) {
        uint32_t a = from[0], b = from[1], c = from[2], d = from[3];
        to[0] = a;
        to[1] = b;
        to[2] = c;
        to[3] = d;
        __asm__ volatile("" ::: "memory");
    }
}

static __attribute__((noinline)) void copy_bytes(uint8_t *to, const uint8_t *from, size_t count)
{
    while (count-- > 0) {
        *to++ = *from++;
        __asm__ volatile("" ::: "memory");
    }
}

static __attribute__((noinline)) void fill_words(uint32_t *to, uint32_t value, size_t count)
{
    while (count-- > 0) {
        *to++ = value;
        __asm__ volatile("" ::: "memory");
    }
}

static __attribute__((noinline)) uint32_t sum_stride(const uint32_t *from, size_t count, size_t stride)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < count; i += stride) {
        sum += from[i];
    }
    return sum;
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t checksum = 0, seed = 1;
    for (size_t i = 0; i < WORDS; i++) {
        seed = random_next(seed);
        source[i] = seed;
    }
    for (uint32_t round = 0; round < rounds; round++) {
        copy_words(target, source, WORDS);
        copy_words_by_four(source, target + 16, WORDS - 16);
        copy_bytes((uint8_t *)target, (const uint8_t *)source + 1, WORDS);
        fill_words(target + WORDS / 2, round, WORDS / 4);
        checksum += sum_stride(target, WORDS, 1) ^ sum_stride(target, WORDS, 17);
    }
    return finish("memory", rounds == FULL_ROUNDS, checksum, 0xbdd553fa);
}
