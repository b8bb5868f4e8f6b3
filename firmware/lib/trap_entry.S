# Trap vectors. Interrupts save what a C function may clobber; exceptions save the whole register file as a
# struct trap_frame that their handler may change; f registers are saved where the program may use them. Both save mepc and mstatus, so that an exception inside a handler is safe.

    .equ    FRAME_CALLER, 80
    .equ    FRAME_FULL, 144         # sizeof(struct trap_frame)

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

    .macro  each_float operation    # what a C function may clobber
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
    sw      ra, 0(sp)
    sw      t0, 4(sp)
    sw      t1, 8(sp)
    sw      t2, 12(sp)
    sw      t3, 16(sp)
    sw      t4, 20(sp)
    sw      t5, 24(sp)
    sw      t6, 28(sp)
    sw      a0, 32(sp)
    sw      a1, 36(sp)
    sw      a2, 40(sp)
    sw      a3, 44(sp)
    sw      a4, 48(sp)
    sw      a5, 52(sp)
    sw      a6, 56(sp)
    sw      a7, 60(sp)
    csrr    t0, mepc
    csrr    t1, mstatus
    csrr    a0, mcause
    sw      t0, 64(sp)
    sw      t1, 68(sp)
    save_float
    call    trap_interrupt
    restore_float
    lw      t0, 64(sp)
    lw      t1, 68(sp)
    csrw    mepc, t0
    csrw    mstatus, t1
    lw      ra, 0(sp)
    lw      t0, 4(sp)
    lw      t1, 8(sp)
    lw      t2, 12(sp)
    lw      t3, 16(sp)
    lw      t4, 20(sp)
    lw      t5, 24(sp)
    lw      t6, 28(sp)
    lw      a0, 32(sp)
    lw      a1, 36(sp)
    lw      a2, 40(sp)
    lw      a3, 44(sp)
    lw      a4, 48(sp)
    lw      a5, 52(sp)
    lw      a6, 56(sp)
    lw      a7, 60(sp)
    addi    sp, sp, FRAME_CALLER
    mret
    .size trap_interrupt_entry, . - trap_interrupt_entry

    .macro  each_register operation # all but x0 and sp
    .irp    n, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    \operation x\n, 4 * \n(sp)
    .endr
    .endm

    .globl trap_exception_entry
    .type trap_exception_entry, @function
trap_exception_entry:
    addi    sp, sp, -FRAME_FULL
    each_register sw
    addi    t0, sp, FRAME_FULL
    sw      zero, 0(sp)
    sw      t0, 8(sp)
    csrr    t0, mepc
    csrr    t1, mstatus
    csrr    t2, mcause
    csrr    t3, mtval
    sw      t0, 128(sp)
    sw      t1, 132(sp)
    sw      t2, 136(sp)
    sw      t3, 140(sp)
    mv      a0, sp
    save_float
    call    trap_exception
    restore_float
    lw      t0, 128(sp)
    lw      t1, 132(sp)
    csrw    mepc, t0
    csrw    mstatus, t1
    each_register lw
    addi    sp, sp, FRAME_FULL
    mret
    .size trap_exception_entry, . - trap_exception_entry
