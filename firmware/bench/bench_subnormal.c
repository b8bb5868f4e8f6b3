/* Floating point with subnormal numbers. */
#include "float_loop.h"

FLOAT_LOOP("subnormal", 20000000, 0, 1, 0x40e00000, "fadd.s %[x], %[a], %[a]\n fmul.s %[y], %[a], %[b]", 0xc)
