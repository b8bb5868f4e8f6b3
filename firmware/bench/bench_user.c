/* User mode under PMP: a region that is forbidden, all else permitted. Needs a hart with U. */
#include "bench.h"

BENCH_ROUNDS(300000)

static uint8_t forbidden[4096] __attribute__((aligned(4096)));
static uint32_t table[64];

/* Go on behind an ecall of user mode, in machine mode. */
static void __attribute__((naked, aligned(4))) back(void)
{
    __asm__ volatile("li t0, 0x1800\n"
                     "csrs mstatus, t0\n"
                     "csrr t0, mepc\n"
                     "addi t0, t0, 4\n"
                     "csrw mepc, t0\n"
                     "mret");
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    __asm__ volatile("csrw pmpaddr0, %0\n"
                     "csrw pmpaddr1, %1\n"
                     "csrw pmpcfg0, %2\n"
                     "csrw mtvec, %3" ::"r"((uint32_t)(uintptr_t)forbidden >> 2 | 0x1FF),
                     "r"(UINT32_MAX), "r"(0x1F18), "r"(back));
    __asm__ volatile("la t0, 1f\n"
                     "csrw mepc, t0\n"
                     "li t0, 0x1800\n"
                     "csrc mstatus, t0\n"
                     "mret\n"
                     "1:" ::
                         : "t0", "memory");
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        table[round % 64] += sum ^ round;
        sum = random_next(sum + table[sum >> 26]);
    }
    __asm__ volatile(".option push\n.option norvc\necall\n.option pop" ::: "t0", "memory");
    return finish("user", rounds == FULL_ROUNDS, sum, 0xe324b382);
}
