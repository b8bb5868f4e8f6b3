/* Tasks of an RTOS: pipes of data, a shared counter, delays, time slices. Results do not depend on the timing of
   ticks, so the output is the same on every machine and in every engine. Compile with rtos/kernel.c and
   rtos/switch.S. */
#include "bench.h"
#include "rtos/rtos.h"

BENCH_ROUNDS(1000)
#ifndef PREEMPTIVE
#define PREEMPTIVE 1
#endif
NPU_ARG(1, preemptive, PREEMPTIVE)
NPU_ARG(2, tick, 1000) /* period in counts of mtime: 100 us on QEMU */

enum { STACK = 512, SPINNERS = 2, SPIN = 400, PERIOD = 3, PATIENCE = 5, LOCKED = 8 };

/* Tasks by priority. */
enum { LOW = 1, MIDDLE = 2, HIGH = 3, URGENT = 4, JUDGE = 5 };

#define TASK(name)    \
    static TCB_t name; \
    static uint32_t name##_stack[STACK] __attribute__((aligned(16)))

TASK(judge);
TASK(producer);
TASK(filter);
TASK(consumer);
TASK(periodic);
TASK(sleeper);
static TCB_t spinner[SPINNERS];
static uint32_t spinner_stack[SPINNERS][STACK] __attribute__((aligned(16)));

static uint32_t rounds;
static queue_t console, done, numbers, squares, lock;
static uint16_t number_items[4];
static uint32_t square_items[2];

static void say(const char *name, uint32_t value)
{
    semaphore_take(&console, RTOS_FOREVER);
    print("%s %x\n", name, (unsigned)value);
    semaphore_give(&console);
}

/* -- a pipe: numbers, their squares, a checksum ------------------------------------------------------------------- */

static void produce(void *unused)
{
    (void)unused;
    uint32_t seed = 1;
    for (uint32_t round = 0; round < rounds; round++) {
        seed = random_next(seed);
        uint16_t number = (uint16_t)(seed >> 16);
        queue_send(&numbers, &number, RTOS_FOREVER);
    }
    semaphore_give(&done);
}

static void square(void *unused)
{
    (void)unused;
    for (uint32_t round = 0; round < rounds; round++) {
        uint16_t number = 0;
        queue_receive(&numbers, &number, RTOS_FOREVER);
        uint32_t square = (uint32_t)number * number;
        queue_send(&squares, &square, RTOS_FOREVER);
    }
    semaphore_give(&done);
}

static uint16_t pipe_crc;

static void consume(void *unused)
{
    (void)unused;
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t square = 0;
        queue_receive(&squares, &square, RTOS_FOREVER);
        pipe_crc = crc16(crc16(pipe_crc, (uint16_t)square), (uint16_t)(square >> 16));
    }
    semaphore_give(&done);
}

/* -- time ---------------------------------------------------------------------------------------------------------- */

static uint32_t beats, late_beats, early_naps, false_wakes;

static void beat(void *unused)
{
    (void)unused;
    uint32_t wake = rtos_ticks();
    for (beats = 0; beats < 32; beats++) {
        rtos_delay_until(&wake, PERIOD);
        late_beats += rtos_ticks() - wake > INT32_MAX; /* woken too early */
    }
    semaphore_give(&done);
}

/* Sleep, wait for an item until the time-out, and suspend until the judge resumes the task. */
static void sleep(void *unused)
{
    (void)unused;
    static queue_t nothing;
    semaphore_make(&nothing, 1, 0);
    for (uint32_t nap = 1; nap <= PATIENCE; nap++) {
        uint32_t before = rtos_ticks();
        rtos_delay(nap);
        early_naps += rtos_ticks() - before < nap;
        before = rtos_ticks();
        false_wakes += semaphore_take(&nothing, nap);
        early_naps += rtos_ticks() - before < nap;
    }
    semaphore_give(&done);
    rtos_suspend(NULL);
    semaphore_give(&done);
}

/* -- equals that share the processor, and a counter ----------------------------------------------------------------- */

static volatile uint32_t counter;
static uint16_t spun[SPINNERS];

static void spin(void *argument)
{
    uint32_t me = (uint32_t)(uintptr_t)argument;
    for (uint32_t round = 0; round < SPIN; round++) {
        spun[me] = crc16(spun[me], (uint16_t)(round + me));
        if (round % LOCKED == 0) {
            semaphore_take(&lock, RTOS_FOREVER);
            uint32_t seen = counter;
            rtos_yield(); /* let the other task find the lock taken */
            counter = seen + 1;
            semaphore_give(&lock);
        }
    }
    semaphore_give(&done);
}

/* -- the judge ------------------------------------------------------------------------------------------------------ */

static void judging(void *unused)
{
    (void)unused;
    enum { FINISHED = 5 + SPINNERS };
    for (uint32_t i = 0; i < FINISHED; i++) {
        semaphore_take(&done, RTOS_FOREVER);
    }
    rtos_delay(1); /* the sleeper has suspended itself, or is about to */
    while (sleeper.xStateListItem.pxContainer == NULL || sleeper.xEventListItem.pxContainer != NULL) {
        rtos_delay(1);
    }
    rtos_resume(&sleeper);
    semaphore_take(&done, RTOS_FOREVER);
    say("pipe", pipe_crc);
    say("beats", beats);
    say("late", late_beats + early_naps + false_wakes);
    say("counter", counter);
    say("spun", (uint32_t)spun[0] << 16 | spun[1]);
    bool right = beats == 32 && late_beats + early_naps + false_wakes == 0 && counter == SPINNERS * SPIN / LOCKED &&
                 rtos_switches() > 4 * SPINNERS;
    firmware_exit(right ? finish("rtos", rounds == FULL_ROUNDS, pipe_crc, 0x80fb) : 2);
}

#define CREATE(task, priority, entry) rtos_create(&task, #task, priority, entry, NULL, task##_stack, STACK)

int main(void)
{
    rounds = arg_rounds();
    semaphore_make(&console, 1, 1);
    semaphore_make(&lock, 1, 1);
    semaphore_make(&done, 16, 0);
    queue_make(&numbers, number_items, sizeof(number_items[0]), 4, 0);
    queue_make(&squares, square_items, sizeof(square_items[0]), 2, 0);
    CREATE(judge, JUDGE, judging);
    CREATE(producer, LOW, produce);
    CREATE(filter, HIGH, square);
    CREATE(consumer, MIDDLE, consume);
    CREATE(periodic, URGENT, beat);
    CREATE(sleeper, URGENT, sleep);
    for (uint32_t i = 0; i < SPINNERS; i++) {
        rtos_create(&spinner[i], i == 0 ? "spinner 0" : "spinner 1", LOW, spin, (void *)(uintptr_t)i, spinner_stack[i],
                    STACK);
    }
    rtos_start(arg_tick(), arg_preemptive() != 0);
}
