# Traps of the RTOS: save the running task's registers on its stack, let rtos_trap decide, restore those of the task
# that is the current one then. The frame is that of FreeRTOS's RISC-V port: pc, ra, t0..t6 and s0..a7 in the order of
# their numbers, xCriticalNesting, mstatus. gp and tp are the same for all tasks.

    .equ    FRAME, 124              # FRAME_WORDS of kernel.c
    .equ    NESTING, 116
    .equ    MSTATUS, 120

    .macro  each_register operation
    \operation ra, 4(sp)
    .irp    n, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    \operation x\n, 4 * (\n - 3)(sp)
    .endr
    .endm

    .section .text.rtos, "ax"
    .balign 4
    .globl rtos_trap_entry
    .type rtos_trap_entry, @function
rtos_trap_entry:
    addi    sp, sp, -FRAME
    each_register sw
    lw      t0, xCriticalNesting
    csrr    t1, mstatus
    csrr    a1, mepc
    csrr    a0, mcause
    sw      t0, NESTING(sp)
    sw      t1, MSTATUS(sp)
    bltz    a0, 1f                  # an ecall goes on behind itself; after any other exception nothing goes on
    addi    a1, a1, 4
1:  sw      a1, 0(sp)
    lw      t0, pxCurrentTCB
    sw      sp, 0(t0)
    la      sp, __stack_top         # main's stack: it does not return
    call    rtos_trap

    .globl rtos_restore
    .type rtos_restore, @function
rtos_restore:                       # go on with the current task
    lw      t0, pxCurrentTCB
    lw      sp, 0(t0)
    lw      t0, 0(sp)
    lw      t1, MSTATUS(sp)
    lw      t2, NESTING(sp)
    csrw    mepc, t0
    csrw    mstatus, t1
    sw      t2, xCriticalNesting, t0
    each_register lw
    addi    sp, sp, FRAME
    mret
    .size rtos_trap_entry, . - rtos_trap_entry
