/* Floating point with exception flags cleared in each iteration. */
#include "float_loop.h"

FLOAT_LOOP("clear_flags", 20000000, 0, 0x40400000, 0x40e00000, "fsflags zero\n fdiv.s %[x], %[a], %[b]", 0x3edb6db6)
