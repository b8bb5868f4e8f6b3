/* Floating point with rounding towards zero in frm. */
#include "float_loop.h"

FLOAT_LOOP("dynamic_mode", 20000000, 1, 0x40400000, 0x40e00000, "fdiv.s %[x], %[a], %[b]\n fadd.s %[y], %[a], %[b]", 0xbc9b6d97)
