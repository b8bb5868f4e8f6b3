/* Two alternating tasks in user mode. PMP permits each its own page and denies the other's; it is reprogrammed at every
   switch, as by an RTOS with memory protection. Needs a hart with U. */
#include "bench.h"
#include "user.h"

BENCH_ROUNDS(200000)

enum { PAGE = 4096, TASKS = 2, NAPOT_ALL = 0x1F, NAPOT_READ_WRITE = 0x1B, NAPOT_NONE = 0x18 };

static uint32_t pages[TASKS][PAGE / 4] __attribute__((aligned(PAGE)));

static uint32_t page_of(uint32_t task)
{
    return (uint32_t)(uintptr_t)pages[task] >> 2 | 0x1FF;
}

static void permit(uint32_t task)
{
    __asm__ volatile("csrw pmpaddr0, %0\n"
                     "csrw pmpaddr1, %1\n"
                     "csrw pmpcfg0, %2" ::"r"(page_of(1 - task)), "r"(page_of(task)),
                     "r"(NAPOT_ALL << 16 | NAPOT_READ_WRITE << 8 | NAPOT_NONE));
}

int main(void)
{
    const uint32_t rounds = arg_rounds();
    uint32_t sum = 0;
    __asm__ volatile("csrw pmpaddr2, %0\n"
                     "csrw mtvec, %1" ::"r"(UINT32_MAX), "r"(back_in_machine_mode));
    for (uint32_t round = 0; round < rounds; round++) {
        const uint32_t task = round % TASKS;
        permit(task);
        to_user_mode();
        for (uint32_t word = 0; word < 16; word++) {
            pages[task][(round + word) % (PAGE / 4)] += round ^ word;
        }
        sum = random_next(sum + pages[task][round % (PAGE / 4)]);
        to_machine_mode();
    }
    return finish("regions", rounds == FULL_ROUNDS, sum, 0xebfdf050);
}
