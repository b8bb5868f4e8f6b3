/* Floating point with static rounding modes in the instructions. */
#include "float_loop.h"

FLOAT_LOOP("static_mode", 20000000, 0, 0x40400000, 0x40e00000, "fdiv.s %[x], %[a], %[b], rtz\n fadd.s %[y], %[a], %[b], rup", 0xbc9b6db7)
