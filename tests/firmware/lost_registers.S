# uint32_t lost_registers(void): fill the registers, trap, and count those that differ afterwards.

#include "width.h"

    .text
    .globl lost_registers
    .globl lost_registers_site
lost_registers:
    addi    sp, sp, -32 * REGISTER
    .irp    n, 1, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27
    STORE   x\n, REGISTER * \n(sp)
    .endr
    .irp    n, 1, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    li      x\n, 0x1000 + \n
    .endr
    .balign 4
lost_registers_site:
    .word   0
    li      a0, 0
    .irp    n, 1, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    lui     x3, 1
    addi    x3, x3, \n
    xor     x\n, x\n, x3
    snez    x\n, x\n
    add     a0, a0, x\n
    .endr
    .irp    n, 1, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27
    LOAD    x\n, REGISTER * \n(sp)
    .endr
    .option push
    .option norelax
    la      gp, __global_pointer$
    .option pop
    addi    sp, sp, 32 * REGISTER
    ret
