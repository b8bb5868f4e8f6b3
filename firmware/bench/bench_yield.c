/* RTOS tasks that mostly yield to each other and exchange items through a queue. Compile with
   rtos/kernel.c and rtos/switch.S. */
#include "bench.h"
#include "rtos/rtos.h"

BENCH_ROUNDS(400000)

enum { STACK = 512, TASKS = 3 };

static TCB_t worker[TASKS], judge;
static uint32_t worker_stack[TASKS][STACK] __attribute__((aligned(16)));
static uint32_t judge_stack[STACK] __attribute__((aligned(16)));
static uint32_t rounds, sum[TASKS];
static queue_t done;

static void work(void *argument)
{
    uint32_t me = (uint32_t)(uintptr_t)argument;
    for (uint32_t round = 0; round < rounds; round++) {
        sum[me] = random_next(sum[me] + round);
        rtos_yield();
    }
    semaphore_give(&done);
}

static void judging(void *unused)
{
    (void)unused;
    uint32_t all = 0;
    for (uint32_t i = 0; i < TASKS; i++) {
        semaphore_take(&done, RTOS_FOREVER);
    }
    for (uint32_t i = 0; i < TASKS; i++) {
        all = all * 31 + sum[i];
    }
    firmware_exit(finish("yield", rounds == FULL_ROUNDS, all, 0xd9241040));
}

int main(void)
{
    rounds = arg_rounds();
    semaphore_make(&done, TASKS, 0);
    rtos_create(&judge, "judge", 3, judging, NULL, judge_stack, STACK);
    for (uint32_t i = 0; i < TASKS; i++) {
        rtos_create(&worker[i], "worker", 1, work, (void *)(uintptr_t)i, worker_stack[i], STACK);
    }
    rtos_start(1000, true);
}
