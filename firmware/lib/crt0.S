# Start-up code. a0: hart id; a1: address of npu_bootinfo (arbitrary on other platforms).

#include "width.h"

    .section .text.start, "ax"
    .globl _start
    .type _start, @function
_start:
    .option push
    .option norelax
    la      gp, __global_pointer$
    .option pop
    la      sp, __stack_top
    la      tp, __tls_base          # thread-local variables; single-threaded
    la      t0, trap_vectors
    ori     t0, t0, 1               # vectored
    csrw    mtvec, t0
#ifdef __riscv_flen
    li      t0, 1 << 13             # mstatus.FS = Initial: the f registers may be used
    csrs    mstatus, t0
    fscsr   zero
#endif

    la      t0, __bss_start
    la      t1, __bss_end
1:  bgeu    t0, t1, 2f
    sw      zero, 0(t0)
    addi    t0, t0, 4
    j       1b

2:  mv      a0, a1
    call    boot_start

    la      s0, __init_array_start  # constructors
    la      s1, __init_array_end
3:  bgeu    s0, s1, 4f
    LOAD    t0, 0(s0)
    addi    s0, s0, REGISTER
    jalr    t0
    j       3b

4:  li      a0, 0                   # argc
    la      a1, no_arguments
    call    main
    call    exit
    .size _start, . - _start

    .section .rodata.no_arguments, "a"
    .balign REGISTER
no_arguments:
    .zero   REGISTER                # argv[argc]
