/* Periodic interrupts by the timer of the CLINT. */
#ifndef BENCH_TIMER_H
#define BENCH_TIMER_H

#include "runtime.h"
#include "trap.h"

static volatile uint32_t ticks;
static uint32_t tick_period;

static void set_timer(void)
{
    volatile uint32_t *compare = (volatile uint32_t *)(NPU_MAP_CLINT_BASE + 0x4000);
    volatile uint32_t *time = (volatile uint32_t *)(NPU_MAP_CLINT_BASE + 0xBFF8);
    compare[1] = 0;
    compare[0] = time[0] + tick_period; /* runs are too short to need the upper half */
}

static void tick(void)
{
    ticks++;
    set_timer();
}

/* Start periodic interrupts, counted in `ticks`: the period is in counts of mtime, from the handler of the last one. */
static inline void start_ticks(uint32_t period)
{
    tick_period = period;
    trap_on_interrupt(TRAP_TIMER, tick);
    set_timer();
    interrupts_on();
}

#endif
