/* Scheduler: task lists, ticks and traps, delays and queues. */
#include "rtos.h"

#include "runtime.h"
#include "trap.h"

enum { FRAME_WORDS = 31, FRAME_PC = 0, FRAME_A0 = 7, FRAME_A1 = 8, FRAME_MSTATUS = 30 };
enum { MSTATUS_MIE = 8, MSTATUS_MPIE = 0x80, MSTATUS_MPP = 0x1800, MIE_TIMER = 0x80 };
enum { EXIT_TRAP = 61 };

/* Debuggers find tasks by these symbols. */
TCB_t *volatile pxCurrentTCB;
List_t pxReadyTasksLists[RTOS_PRIORITIES];
List_t xDelayedTaskList1, xDelayedTaskList2; /* sorted by wake-up tick, before and after the counter wraps */
List_t *volatile pxDelayedTaskList = &xDelayedTaskList1;
List_t *volatile pxOverflowDelayedTaskList = &xDelayedTaskList2;
List_t xSuspendedTaskList; /* also tasks that wait without time-out */
List_t xTasksWaitingTermination; /* terminated tasks */
volatile uint32_t uxCurrentNumberOfTasks, xSchedulerRunning;
uint32_t xCriticalNesting;

static volatile uint32_t ticks = UINT32_MAX - 20; /* wraps soon, to test wrapping */
static volatile uint32_t switches;
static uint32_t interval;
static bool preempts, lists_made;

void rtos_trap_entry(void);
void rtos_restore(void) __attribute__((noreturn));
void rtos_trap(uint32_t mcause, uint32_t pc);

/* -- lists ------------------------------------------------------------------------------------------------------- */

static void list_make(List_t *list)
{
    list->uxNumberOfItems = 0;
    list->pxIndex = &list->xListEnd;
    list->xListEnd = (MiniListItem_t){UINT32_MAX, &list->xListEnd, &list->xListEnd};
}

static void insert_before(MiniListItem_t *next, ListItem_t *item, List_t *list)
{
    item->link.pxNext = next;
    item->link.pxPrevious = next->pxPrevious;
    next->pxPrevious->pxNext = &item->link;
    next->pxPrevious = &item->link;
    item->pxContainer = list;
    list->uxNumberOfItems++;
}

static void list_append(List_t *list, ListItem_t *item)
{
    insert_before(&list->xListEnd, item, list);
}

/* Insert an item after all items with the same or a lower value. */
static void list_insert(List_t *list, ListItem_t *item)
{
    MiniListItem_t *next = list->xListEnd.pxNext;
    while (next != &list->xListEnd && next->xItemValue <= item->link.xItemValue) {
        next = next->pxNext;
    }
    insert_before(next, item, list);
}

static void list_remove(ListItem_t *item)
{
    List_t *list = item->pxContainer;
    if (list->pxIndex == &item->link) {
        list->pxIndex = item->link.pxPrevious;
    }
    item->link.pxNext->pxPrevious = item->link.pxPrevious;
    item->link.pxPrevious->pxNext = item->link.pxNext;
    item->pxContainer = NULL;
    list->uxNumberOfItems--;
}

static TCB_t *owner(MiniListItem_t *link)
{
    return ((ListItem_t *)link)->pvOwner;
}

static TCB_t *list_first(const List_t *list)
{
    return owner(list->xListEnd.pxNext);
}

/* Return the next item, round robin. */
static TCB_t *list_next(List_t *list)
{
    list->pxIndex = list->pxIndex->pxNext;
    if (list->pxIndex == &list->xListEnd) {
        list->pxIndex = list->pxIndex->pxNext;
    }
    return owner(list->pxIndex);
}

static void make_lists(void)
{
    for (uint32_t priority = 0; priority < RTOS_PRIORITIES; priority++) {
        list_make(&pxReadyTasksLists[priority]);
    }
    list_make(&xDelayedTaskList1);
    list_make(&xDelayedTaskList2);
    list_make(&xSuspendedTaskList);
    list_make(&xTasksWaitingTermination);
    lists_made = true;
}

/* -- which task runs ----------------------------------------------------------------------------------------------- */

static List_t *most_urgent(void)
{
    List_t *list = &pxReadyTasksLists[RTOS_PRIORITIES - 1];
    while (list->uxNumberOfItems == 0) {
        list--;
    }
    return list;
}

static void choose(void)
{
    TCB_t *before = pxCurrentTCB;
    pxCurrentTCB = list_next(most_urgent());
    switches += pxCurrentTCB != before;
}

/* Append a task to the ready list of its priority. */
static void make_ready(TCB_t *task)
{
    List_t *list = &pxReadyTasksLists[task->uxPriority];
    insert_before(list->pxIndex, &task->xStateListItem, list);
}

/* Block the current task until it is woken up, for at most a number of ticks. Call with interrupts off. */
static void block(uint32_t wait)
{
    ListItem_t *item = &pxCurrentTCB->xStateListItem;
    list_remove(item);
    if (wait == RTOS_FOREVER) {
        list_append(&xSuspendedTaskList, item);
        return;
    }
    item->link.xItemValue = ticks + wait;
    list_insert(item->link.xItemValue < ticks ? pxOverflowDelayedTaskList : pxDelayedTaskList, item);
}

static void wake(TCB_t *task)
{
    list_remove(&task->xStateListItem);
    if (task->xEventListItem.pxContainer != NULL) {
        list_remove(&task->xEventListItem);
    }
    make_ready(task);
}

/* Return whether a newly ready task preempts the current one. */
static bool more_urgent(const TCB_t *task)
{
    return preempts && task->uxPriority > pxCurrentTCB->uxPriority;
}

/* -- ticks and traps ----------------------------------------------------------------------------------------------- */

static void set_timer(uint64_t count)
{
    mmio_write32(NPU_MAP_CLINT_BASE + 0x4004, UINT32_MAX); /* no interrupt between the two writes */
    mmio_write32(NPU_MAP_CLINT_BASE + 0x4000, (uint32_t)count);
    mmio_write32(NPU_MAP_CLINT_BASE + 0x4004, (uint32_t)(count >> 32));
}

static uint64_t next_tick;

static void tick(void)
{
    next_tick += interval;
    set_timer(next_tick);
    if (++ticks == 0) {
        List_t *due = pxDelayedTaskList;
        pxDelayedTaskList = pxOverflowDelayedTaskList;
        pxOverflowDelayedTaskList = due;
    }
    bool yield = preempts && pxReadyTasksLists[pxCurrentTCB->uxPriority].uxNumberOfItems > 1;
    while (pxDelayedTaskList->uxNumberOfItems != 0 && pxDelayedTaskList->xListEnd.pxNext->xItemValue <= ticks) {
        TCB_t *task = list_first(pxDelayedTaskList);
        wake(task);
        yield = yield || more_urgent(task);
    }
    if (yield) {
        choose();
    }
}

/* Called by switch.S on main's stack, with interrupts off. */
void rtos_trap(uint32_t mcause, uint32_t pc)
{
    if (mcause == (0x80000000u | TRAP_TIMER)) {
        tick();
    } else if (mcause == TRAP_ECALL_M) {
        choose();
    } else {
        print("task %s: unexpected trap, mcause 0x%x, mepc 0x%x\n", pxCurrentTCB->pcTaskName, (unsigned)mcause,
              (unsigned)(pc - (mcause >> 31 ? 0 : 4)));
        firmware_exit(EXIT_TRAP);
    }
}

void rtos_yield(void)
{
    __asm__ volatile("ecall" ::: "memory");
}

void rtos_enter_critical(void)
{
    interrupts_off();
    xCriticalNesting++;
}

void rtos_exit_critical(void)
{
    if (--xCriticalNesting == 0 && xSchedulerRunning) { /* interrupts stay off before the first task runs */
        interrupts_on();
    }
}

/* -- tasks ------------------------------------------------------------------------------------------------------- */

/* Entry and exit of every task. */
static void run(void (*entry)(void *), void *argument)
{
    entry(argument);
    rtos_enter_critical();
    list_remove(&pxCurrentTCB->xStateListItem);
    list_append(&xTasksWaitingTermination, &pxCurrentTCB->xStateListItem);
    rtos_yield();
}

void rtos_create(TCB_t *task, const char *name, uint32_t priority, void (*entry)(void *), void *argument,
                 uint32_t *stack, uint32_t words)
{
    if (!lists_made) {
        make_lists();
    }
    *task = (TCB_t){.uxPriority = priority, .pxStack = stack, .pxTopOfStack = stack + words - FRAME_WORDS};
    for (uint32_t i = 0; i < RTOS_NAME_BYTES - 1 && name[i] != '\0'; i++) {
        task->pcTaskName[i] = name[i];
    }
    task->xStateListItem.pvOwner = task->xEventListItem.pvOwner = task;
    task->xEventListItem.link.xItemValue = RTOS_PRIORITIES - priority;
    uint32_t *frame = task->pxTopOfStack;
    for (uint32_t i = 0; i < FRAME_WORDS; i++) {
        frame[i] = 0;
    }
    frame[FRAME_PC] = (uint32_t)(uintptr_t)run;
    frame[FRAME_A0] = (uint32_t)(uintptr_t)entry;
    frame[FRAME_A1] = (uint32_t)(uintptr_t)argument;
    frame[FRAME_MSTATUS] = MSTATUS_MPP | MSTATUS_MPIE;
    rtos_enter_critical();
    uxCurrentNumberOfTasks++;
    make_ready(task);
    if (xSchedulerRunning && more_urgent(task)) {
        rtos_yield();
    }
    rtos_exit_critical();
}

static void idle(void *unused)
{
    (void)unused;
    for (;;) {
        __asm__ volatile("wfi");
        if (!preempts) {
            rtos_yield();
        }
    }
}

void rtos_start(uint32_t tick_counts, bool preemptive)
{
    static TCB_t task;
    static uint32_t stack[RTOS_LEAST_STACK] __attribute__((aligned(16)));
    rtos_create(&task, "IDLE", 0, idle, NULL, stack, RTOS_LEAST_STACK);
    interval = tick_counts;
    preempts = preemptive;
    CSR_WRITE(mtvec, (uintptr_t)rtos_trap_entry);
    next_tick = mmio_read32(NPU_MAP_CLINT_BASE + 0xBFF8) | (uint64_t)mmio_read32(NPU_MAP_CLINT_BASE + 0xBFFC) << 32;
    next_tick += interval;
    set_timer(next_tick);
    CSR_SET(mie, MIE_TIMER);
    pxCurrentTCB = list_next(most_urgent());
    xSchedulerRunning = true;
    rtos_restore();
}

uint32_t rtos_ticks(void)
{
    return ticks;
}

uint32_t rtos_switches(void)
{
    return switches;
}

void rtos_delay(uint32_t wait)
{
    rtos_enter_critical();
    if (wait > 0) {
        block(wait);
    }
    rtos_yield();
    rtos_exit_critical();
}

void rtos_delay_until(uint32_t *last, uint32_t period)
{
    rtos_enter_critical();
    *last += period;
    uint32_t wait = *last - ticks;
    if (wait - 1 < period) { /* the deadline is in the future */
        block(wait);
        rtos_yield();
    }
    rtos_exit_critical();
}

void rtos_suspend(TCB_t *task)
{
    rtos_enter_critical();
    task = task == NULL ? pxCurrentTCB : task;
    list_remove(&task->xStateListItem);
    if (task->xEventListItem.pxContainer != NULL) {
        list_remove(&task->xEventListItem);
    }
    list_append(&xSuspendedTaskList, &task->xStateListItem);
    if (task == pxCurrentTCB) {
        rtos_yield();
    }
    rtos_exit_critical();
}

/* Make a suspended task ready. */
void rtos_resume(TCB_t *task)
{
    rtos_enter_critical();
    if (task->xStateListItem.pxContainer == &xSuspendedTaskList && task->xEventListItem.pxContainer == NULL) {
        wake(task);
        if (more_urgent(task)) {
            rtos_yield();
        }
    }
    rtos_exit_critical();
}

/* -- queues -------------------------------------------------------------------------------------------------------- */

void queue_make(queue_t *queue, void *items, uint32_t item_bytes, uint32_t capacity, uint32_t used)
{
    *queue = (queue_t){.items = items, .item_bytes = item_bytes, .capacity = capacity, .used = used};
    list_make(&queue->senders);
    list_make(&queue->receivers);
}

static void copy(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    while (bytes-- > 0) {
        *to++ = *from++;
    }
}

/* Wait in `list`, at most `limit` ticks from tick `since`. Return false on time-out. Call with interrupts off. */
static bool wait_in(List_t *list, uint32_t since, uint32_t limit)
{
    uint32_t passed = ticks - since;
    if (limit != RTOS_FOREVER && passed >= limit) {
        return false;
    }
    list_insert(list, &pxCurrentTCB->xEventListItem);
    block(limit == RTOS_FOREVER ? RTOS_FOREVER : limit - passed);
    rtos_yield();
    return true;
}

static void wake_first(List_t *list)
{
    if (list->uxNumberOfItems != 0) {
        TCB_t *task = list_first(list);
        wake(task);
        if (more_urgent(task)) {
            rtos_yield();
        }
    }
}

bool queue_send(queue_t *queue, const void *item, uint32_t limit)
{
    rtos_enter_critical();
    uint32_t since = ticks;
    bool room = true;
    while (queue->used == queue->capacity && room) {
        room = wait_in(&queue->senders, since, limit);
    }
    if (room) {
        uint32_t place = (queue->first + queue->used++) % queue->capacity;
        copy(queue->items + place * queue->item_bytes, item, queue->item_bytes);
        wake_first(&queue->receivers);
    }
    rtos_exit_critical();
    return room;
}

bool queue_receive(queue_t *queue, void *item, uint32_t limit)
{
    rtos_enter_critical();
    uint32_t since = ticks;
    bool found = true;
    while (queue->used == 0 && found) {
        found = wait_in(&queue->receivers, since, limit);
    }
    if (found) {
        copy(item, queue->items + queue->first * queue->item_bytes, queue->item_bytes);
        queue->first = (queue->first + 1) % queue->capacity;
        queue->used--;
        wake_first(&queue->senders);
    }
    rtos_exit_critical();
    return found;
}
