/* Loop of two operations in f registers, for rare operands and rounding modes. */
#ifndef FLOAT_LOOP_H
#define FLOAT_LOOP_H

#include "bench.h"

/* `operations` in assembly: %[a] and %[b] are the operands, whose bits are given, %[x] and %[y] the results, %[zero] is
 * 0. Rounding is `mode` of frm. The checksum is of results and fcsr. */
#define FLOAT_LOOP(name, rounds, mode, a_bits, b_bits, operations, expected)                                   \
    BENCH_ROUNDS(rounds)                                                                                       \
    int main(void)                                                                                             \
    {                                                                                                          \
        union {                                                                                                \
            uint32_t word;                                                                                     \
            float value;                                                                                       \
        } a = {(a_bits)}, b = {(b_bits)}, x = {0}, y = {0};                                                    \
        uint32_t left = arg_rounds(), fcsr;                                                                    \
        __asm__ volatile("fsrm %0" : : "r"(mode));                                                             \
        __asm__ volatile("1: " operations "\n addi %[left], %[left], -1\n bnez %[left], 1b\n fscsr %[fcsr], zero" \
                         : [x] "=&f"(x.value), [y] "=&f"(y.value), [left] "+r"(left), [fcsr] "=r"(fcsr)        \
                         : [a] "f"(a.value), [b] "f"(b.value), [zero] "r"(0));                                 \
        return finish(name, true, x.word ^ y.word << 1 ^ fcsr, expected);                                      \
    }

#endif
