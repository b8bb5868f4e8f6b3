/* A small RTOS: tasks with priorities and stacks of their own, time slices, delays, queues and semaphores.

   Its data is named and laid out like that of FreeRTOS and its RISC-V port (github.com/FreeRTOS/FreeRTOS-Kernel,
   list.h, tasks.c, portContext.h), so that a debugger that knows FreeRTOS shows the tasks; the code is our own. All
   memory is given by the caller: nothing is allocated. */
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
    MiniListItem_t link; /* first: a pointer to it is one to the item */
    void *pvOwner;
    struct xLIST *pxContainer; /* the list that the item is in, or NULL */
} ListItem_t;

typedef struct xLIST {
    uint32_t uxNumberOfItems;
    MiniListItem_t *pxIndex; /* where the walk around a list of equals is */
    MiniListItem_t xListEnd;
} List_t;

/* -- tasks ------------------------------------------------------------------------------------------------------- */

enum { RTOS_PRIORITIES = 6, RTOS_NAME_BYTES = 16, RTOS_LEAST_STACK = 128 /* words */ };
#define RTOS_FOREVER UINT32_MAX /* ticks */

typedef struct tskTaskControlBlock {
    uint32_t *pxTopOfStack; /* its saved registers, see switch.S; first, as the code there expects */
    ListItem_t xStateListItem; /* in a ready, delayed or suspended list */
    ListItem_t xEventListItem; /* among those that wait for a queue, the most urgent first */
    uint32_t uxPriority;
    uint32_t *pxStack;
    char pcTaskName[RTOS_NAME_BYTES];
} TCB_t;

extern TCB_t *volatile pxCurrentTCB;

/* Make a ready task that calls entry(argument); when that returns, the task ends. `stack` is aligned to 16 bytes, and
   `words` a multiple of 4. Priorities are below RTOS_PRIORITIES; 0 is the lowest, that of the idle task. */
void rtos_create(TCB_t *task, const char *name, uint32_t priority, void (*entry)(void *), void *argument,
                 uint32_t *stack, uint32_t words);

/* Execute tasks; there must be one. A tick takes so many counts of mtime. Preemptive: the most urgent ready task runs,
   equals take turns with every tick; cooperative: a task runs until it yields or waits. */
void rtos_start(uint32_t tick_counts, bool preemptive) __attribute__((noreturn));

uint32_t rtos_ticks(void);
uint32_t rtos_switches(void); /* how often another task was given the processor */

void rtos_yield(void);
void rtos_delay(uint32_t ticks);
void rtos_delay_until(uint32_t *wake, uint32_t period); /* at *wake + period, which *wake becomes */
void rtos_suspend(TCB_t *task); /* NULL: itself */
void rtos_resume(TCB_t *task);

/* With interrupts off; these nest. */
void rtos_enter_critical(void);
void rtos_exit_critical(void);

/* -- queues; a semaphore is a queue of empty items ----------------------------------------------------------------- */

typedef struct queue {
    uint8_t *items;
    uint32_t item_bytes, capacity, used, first;
    List_t senders, receivers; /* tasks that wait for room, and for an item */
} queue_t;

void queue_make(queue_t *queue, void *items, uint32_t item_bytes, uint32_t capacity, uint32_t used);

/* Wait for at most so many ticks; false: in vain. */
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
