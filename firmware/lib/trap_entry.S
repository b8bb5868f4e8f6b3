# Trap vectors. Interrupts save caller-saved registers; exceptions save all x registers as a struct trap_frame.
# Both save caller-saved f registers (builds with F or D), mepc and mstatus, so that traps in handlers are safe.

#include "width.h"

    .equ    FRAME_CALLER, (18 * REGISTER + 15) & -16
    .equ    FRAME_FULL, 36 * REGISTER # sizeof(struct trap_frame)

#ifdef __riscv_flen
#if __riscv_flen == 64
#define FLOAT_STORE fsd
#define FLOAT_LOAD  fld
#else
#define FLOAT_STORE fsw
#define FLOAT_LOAD  flw
#endif
    .equ    FLOAT_BYTES, __riscv_flen / 8
    .equ    FRAME_FLOAT, 32 * FLOAT_BYTES + 16

    .macro  each_float operation    # caller-saved f registers
    .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 28, 29, 30, 31
    \operation f\n, FLOAT_BYTES * \n(sp)
    .endr
    .endm
#endif

    .macro  save_float              # t0 is free
#ifdef __riscv_flen
    addi    sp, sp, -FRAME_FLOAT
    each_float FLOAT_STORE
    frcsr   t0
    sw      t0, FRAME_FLOAT - 16(sp)
#endif
    .endm

    .macro  restore_float
#ifdef __riscv_flen
    lw      t0, FRAME_FLOAT - 16(sp)
    fscsr   t0
    each_float FLOAT_LOAD
    addi    sp, sp, FRAME_FLOAT
#endif
    .endm

    .section .text.trap, "ax"
    .balign 64
    .globl trap_vectors
    .type trap_vectors, @function
trap_vectors:
    .option push
    .option norvc
    j       trap_exception_entry    # exceptions
    .rept   15
    j       trap_interrupt_entry    # interrupts 1..15
    .endr
    .option pop
    .size trap_vectors, . - trap_vectors

    .globl trap_interrupt_entry
    .type trap_interrupt_entry, @function
trap_interrupt_entry:
    addi    sp, sp, -FRAME_CALLER
    STORE   ra, 0(sp)
    STORE   t0, 1 * REGISTER(sp)
    STORE   t1, 2 * REGISTER(sp)
    STORE   t2, 3 * REGISTER(sp)
    STORE   t3, 4 * REGISTER(sp)
    STORE   t4, 5 * REGISTER(sp)
    STORE   t5, 6 * REGISTER(sp)
    STORE   t6, 7 * REGISTER(sp)
    STORE   a0, 8 * REGISTER(sp)
    STORE   a1, 9 * REGISTER(sp)
    STORE   a2, 10 * REGISTER(sp)
    STORE   a3, 11 * REGISTER(sp)
    STORE   a4, 12 * REGISTER(sp)
    STORE   a5, 13 * REGISTER(sp)
    STORE   a6, 14 * REGISTER(sp)
    STORE   a7, 15 * REGISTER(sp)
    csrr    t0, mepc
    csrr    t1, mstatus
    csrr    a0, mcause
    STORE   t0, 16 * REGISTER(sp)
    STORE   t1, 17 * REGISTER(sp)
    save_float
    call    trap_interrupt
    restore_float
    LOAD    t0, 16 * REGISTER(sp)
    LOAD    t1, 17 * REGISTER(sp)
    csrw    mepc, t0
    csrw    mstatus, t1
    LOAD    ra, 0(sp)
    LOAD    t0, 1 * REGISTER(sp)
    LOAD    t1, 2 * REGISTER(sp)
    LOAD    t2, 3 * REGISTER(sp)
    LOAD    t3, 4 * REGISTER(sp)
    LOAD    t4, 5 * REGISTER(sp)
    LOAD    t5, 6 * REGISTER(sp)
    LOAD    t6, 7 * REGISTER(sp)
    LOAD    a0, 8 * REGISTER(sp)
    LOAD    a1, 9 * REGISTER(sp)
    LOAD    a2, 10 * REGISTER(sp)
    LOAD    a3, 11 * REGISTER(sp)
    LOAD    a4, 12 * REGISTER(sp)
    LOAD    a5, 13 * REGISTER(sp)
    LOAD    a6, 14 * REGISTER(sp)
    LOAD    a7, 15 * REGISTER(sp)
    addi    sp, sp, FRAME_CALLER
    mret
    .size trap_interrupt_entry, . - trap_interrupt_entry

    .macro  each_register operation # all but x0 and sp
    .irp    n, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    \operation x\n, REGISTER * \n(sp)
    .endr
    .endm

    .globl trap_exception_entry
    .type trap_exception_entry, @function
trap_exception_entry:
    addi    sp, sp, -FRAME_FULL
    each_register STORE
    addi    t0, sp, FRAME_FULL
    STORE   zero, 0(sp)
    STORE   t0, 2 * REGISTER(sp)
    csrr    t0, mepc
    csrr    t1, mstatus
    csrr    t2, mcause
    csrr    t3, mtval
    STORE   t0, 32 * REGISTER(sp)
    STORE   t1, 33 * REGISTER(sp)
    STORE   t2, 34 * REGISTER(sp)
    STORE   t3, 35 * REGISTER(sp)
    mv      a0, sp
    save_float
    call    trap_exception
    restore_float
    LOAD    t0, 32 * REGISTER(sp)
    LOAD    t1, 33 * REGISTER(sp)
    csrw    mepc, t0
    csrw    mstatus, t1
    each_register LOAD
    addi    sp, sp, FRAME_FULL
    mret
    .size trap_exception_entry, . - trap_exception_entry
