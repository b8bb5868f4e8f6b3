/* Synchronous traps: a loop of ecall, whose handler returns after it by mret. */
#include "bench.h"

BENCH_ROUNDS(2000000)

static volatile uint32_t counted __attribute__((used));

static void __attribute__((naked, aligned(4))) handler(void)
{
    __asm__ volatile("csrw mscratch, t0\n"
                     "csrr t0, mepc\n"
                     "addi t0, t0, 4\n"
                     "csrw mepc, t0\n"
                     "csrr t0, mscratch\n"
                     "addi a5, a5, 3\n"
                     "mret");
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    __asm__ volatile("csrw mtvec, %0" ::"r"(handler));
    register uint32_t sum __asm__("a5") = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        __asm__ volatile(".option push\n.option norvc\necall\n.option pop" : "+r"(sum)::"memory");
        sum ^= round;
    }
    return finish("traps", rounds == FULL_ROUNDS, sum, 0x4194500);
}
