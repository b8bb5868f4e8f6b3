/* User mode under PMP: one region is denied, all others are permitted. Needs a hart with U. */
#include "bench.h"
#include "user.h"

BENCH_ROUNDS(300000)

static uint8_t forbidden[4096] __attribute__((aligned(4096)));
static uint32_t table[64];

int main(void)
{
    const uint32_t rounds = arg_rounds();
    __asm__ volatile("csrw pmpaddr0, %0\n"
                     "csrw pmpaddr1, %1\n"
                     "csrw pmpcfg0, %2\n"
                     "csrw mtvec, %3" ::"r"((uint32_t)(uintptr_t)forbidden >> 2 | 0x1FF),
                     "r"(UINT32_MAX), "r"(0x1F18), "r"(back_in_machine_mode));
    to_user_mode();
    uint32_t sum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        table[round % 64] += sum ^ round;
        sum = random_next(sum + table[sum >> 26]);
    }
    to_machine_mode();
    return finish("user", rounds == FULL_ROUNDS, sum, 0xe324b382);
}
