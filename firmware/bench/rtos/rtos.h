/* Small RTOS: tasks with priorities and separate stacks, time slices, delays, queues and semaphores.

   Names and layout of its data match FreeRTOS and its RISC-V port (github.com/FreeRTOS/FreeRTOS-Kernel, list.h,
   tasks.c, portContext.h), so that debuggers with FreeRTOS support show the tasks; the code is our own. The caller
   provides all memory. */
#ifndef RTOS_H
#define RTOS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* -- lists ------------------------------------------------------------------------------------------------------- */

/* Circular and sorted by xItemValue; the end of a list has the greatest value. */
typedef struct xMINI_LIST_ITEM {
    uint32_t xItemValue;
    struct xMINI_LIST_ITEM *pxNext, *pxPrevious;
} MiniListItem_t;

typedef struct xLIST_ITEM {
    MiniListItem_t link; /* first member: a pointer to it is a pointer to the item */
    void *pvOwner;
    struct xLIST *pxContainer; /* list of the item, or NULL */
} ListItem_t;

typedef struct xLIST {
    uint32_t uxNumberOfItems;
    MiniListItem_t *pxIndex; /* position of the round-robin iteration */
    MiniListItem_t xListEnd;
} List_t;

/* -- tasks ------------------------------------------------------------------------------------------------------- */

enum { RTOS_PRIORITIES = 6, RTOS_NAME_BYTES = 16, RTOS_LEAST_STACK = 128 /* words */ };
#define RTOS_FOREVER UINT32_MAX /* ticks */

typedef struct tskTaskControlBlock {
    uint32_t *pxTopOfStack; /* saved registers; first member, as switch.S requires */
    ListItem_t xStateListItem; /* in a ready, delayed or suspended list */
    ListItem_t xEventListItem; /* in a list of a queue, highest priority first */
    uint32_t uxPriority;
    uint32_t *pxStack;
    char pcTaskName[RTOS_NAME_BYTES];
} TCB_t;

extern TCB_t *volatile pxCurrentTCB;

/* Create a ready task that calls entry(argument) and ends when it returns. `stack` must be aligned to 16 bytes, `words` a
   multiple of 4. Priorities are below RTOS_PRIORITIES; 0 is the lowest, that of the idle task. */
void rtos_create(TCB_t *task, const char *name, uint32_t priority, void (*entry)(void *), void *argument,
                 uint32_t *stack, uint32_t words);

/* Start the scheduler; at least one task must exist. `tick_counts`: counts of mtime per tick. Preemptive: the ready task
   of highest priority runs, equals alternate at every tick; cooperative: a task runs until it yields or waits. */
void rtos_start(uint32_t tick_counts, bool preemptive) __attribute__((noreturn));

uint32_t rtos_ticks(void);
uint32_t rtos_switches(void); /* number of context switches */

void rtos_yield(void);
void rtos_delay(uint32_t ticks);
void rtos_delay_until(uint32_t *wake, uint32_t period); /* wake up at *wake + period, the new *wake */
void rtos_suspend(TCB_t *task); /* NULL: the current task */
void rtos_resume(TCB_t *task);

/* Disable and enable interrupts; calls nest. */
void rtos_enter_critical(void);
void rtos_exit_critical(void);

/* -- queues; a semaphore is a queue of empty items ----------------------------------------------------------------- */

typedef struct queue {
    uint8_t *items;
    uint32_t item_bytes, capacity, used, first;
    List_t senders, receivers; /* tasks that wait for space or for an item */
} queue_t;

void queue_make(queue_t *queue, void *items, uint32_t item_bytes, uint32_t capacity, uint32_t used);

/* Wait for at most `ticks`. Return false on time-out. */
bool queue_send(queue_t *queue, const void *item, uint32_t ticks);
bool queue_receive(queue_t *queue, void *item, uint32_t ticks);

static inline void semaphore_make(queue_t *semaphore, uint32_t most, uint32_t now)
{
    queue_make(semaphore, NULL, 0, most, now);
}

static inline bool semaphore_take(queue_t *semaphore, uint32_t ticks)
{
    return queue_receive(semaphore, NULL, ticks);
}

static inline bool semaphore_give(queue_t *semaphore)
{
    return queue_send(semaphore, NULL, 0);
}

#endif
