/* Floating point with exact results and fflags clear. */
#include "float_loop.h"

FLOAT_LOOP("exact", 20000000, 0, 0x40400000, 0x40e00000, "fadd.s %[x], %[a], %[b]\n fmul.s %[y], %[a], %[b]", 0xc2700000)
