/* Switching to user mode and back. Needs a hart with U. */
#ifndef BENCH_USER_H
#define BENCH_USER_H

#include "runtime.h"

/* Handler for mtvec: resume after an ecall of user mode, in machine mode. */
static void __attribute__((naked, aligned(4), unused)) back_in_machine_mode(void)
{
    __asm__ volatile("li t0, 0x1800\n"
                     "csrs mstatus, t0\n"
                     "csrr t0, mepc\n"
                     "addi t0, t0, 4\n"
                     "csrw mepc, t0\n"
                     "mret");
}

static inline void to_user_mode(void)
{
    __asm__ volatile("la t0, 1f\n"
                     "csrw mepc, t0\n"
                     "li t0, 0x1800\n"
                     "csrc mstatus, t0\n"
                     "mret\n"
                     "1:" ::
                         : "t0", "memory");
}

/* Switch to machine mode by an ecall of four bytes, which the handler above skips. */
static inline void to_machine_mode(void)
{
    __asm__ volatile(".option push\n.option norvc\necall\n.option pop" ::: "t0", "memory");
}

#endif
