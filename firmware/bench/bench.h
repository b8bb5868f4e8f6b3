/* Common code of the benchmark programs. The same ELF runs on this platform and on QEMU's `virt` machine. */
#ifndef BENCH_H
#define BENCH_H

#include "runtime.h"

/* `full` is the number of rounds of the checksum; define ROUNDS for a shorter run. */
#ifndef ROUNDS
#define ROUNDS FULL_ROUNDS
#endif
#define BENCH_ROUNDS(full)      \
    enum { FULL_ROUNDS = (full) }; \
    NPU_ARG(0, rounds, ROUNDS)

static inline uint32_t random_next(uint32_t seed)
{
    return seed * 1664525u + 1013904223u;
}

/* Update a CRC-16/ARC by two bytes, bitwise. */
static inline uint16_t crc16(uint16_t crc, uint16_t value)
{
    for (int bit = 0; bit < 16; bit++) {
        uint16_t odd = (uint16_t)((crc ^ value) & 1u);
        crc = (uint16_t)(crc >> 1 ^ (odd ? 0xA001u : 0u));
        value = (uint16_t)(value >> 1);
    }
    return crc;
}

/* Print the checksum. Return the exit code: 1 if `checked` and the checksum differs from `expected`, else 0. */
static inline int finish(const char *name, bool checked, uint32_t checksum, uint32_t expected)
{
    print("%s %x\n", name, (unsigned)checksum);
    return checked && checksum != expected;
}

#endif
