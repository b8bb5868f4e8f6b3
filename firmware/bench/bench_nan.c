/* Floating point with NaN operands. */
#include "float_loop.h"

FLOAT_LOOP("nan", 20000000, 0, 0x7fc00000, 0x40e00000, "fadd.s %[x], %[a], %[b]\n fmul.s %[y], %[a], %[b]", 0x80400000)
