/* Calls from user mode into machine mode and back, under PMP, as in an RTOS with protected tasks. Needs a hart
   with U. */
#include "bench.h"
#include "user.h"

BENCH_ROUNDS(1000000)

static uint8_t forbidden[4096] __attribute__((aligned(4096)));
uint32_t calls[4]; /* counted by `serve` */

/* Count the call and return its argument times five; for a7 = 1, continue in machine mode. */
static void __attribute__((naked, aligned(4))) serve(void)
{
    __asm__ volatile("csrrw t0, mscratch, t0\n"
                     "csrr t1, mepc\n"
                     "addi t1, t1, 4\n"
                     "csrw mepc, t1\n"
                     "la t0, calls\n"
                     "andi t1, a0, 3\n"
                     "slli t1, t1, 2\n"
                     "add t0, t0, t1\n"
                     "lw t1, 0(t0)\n"
                     "addi t1, t1, 1\n"
                     "sw t1, 0(t0)\n"
                     "slli t1, a0, 2\n"
                     "add a0, a0, t1\n"
                     "beqz a7, 1f\n"
                     "li t0, 0x1800\n"
                     "csrs mstatus, t0\n"
                     "1: csrrw t0, mscratch, t0\n"
                     "mret");
}

static inline uint32_t call(uint32_t number, uint32_t given)
{
    register uint32_t a0 __asm__("a0") = given;
    register uint32_t a7 __asm__("a7") = number;
    __asm__ volatile(".option push\n.option norvc\necall\n.option pop" : "+r"(a0) : "r"(a7) : "t0", "t1", "memory");
    return a0;
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    __asm__ volatile("csrw pmpaddr0, %0\n"
                     "csrw pmpaddr1, %1\n"
                     "csrw pmpcfg0, %2\n"
                     "csrw mtvec, %3" ::"r"((uint32_t)(uintptr_t)forbidden >> 2 | 0x1FF),
                     "r"(UINT32_MAX), "r"(0x1F18), "r"(serve));
    to_user_mode();
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        sum = random_next(call(0, sum ^ round));
    }
    sum = call(1, sum);
    return finish("syscall", rounds == FULL_ROUNDS, sum ^ calls[0] ^ calls[3] << 8, 0x8530a611);
}
