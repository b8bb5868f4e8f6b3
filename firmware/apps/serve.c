/* Scheduler of an LLM server: requests arrive at a port, each step computes tokens of some of them, KV-cache blocks are
   allocated on demand, and the last request is preempted if none is free. Same rules (docs/serving.md) and decisions as
   the scheduler on the host. `pyv-npu serve MODEL --scheduler firmware` provides the port. */
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG(0, port, 0) /* address of the port; 0: none */
NPU_ARG(1, blocks, 0)
NPU_ARG(2, block_size, 16)
NPU_ARG(3, budget, 2048) /* maximum tokens per step */
NPU_ARG(4, most, 256) /* maximum running requests */
NPU_ARG(5, gate, 1) /* 1: admission needs blocks for all tokens of a request; 0: for its first chunk */
NPU_ARG(6, watermark, 0) /* blocks reserved at admission */
NPU_ARG(7, chunks, 1) /* 1: prompts may be split into chunks */
NPU_ARG(8, swap_blocks, 0) /* blocks of swap space for keys and values of preempted requests */
NPU_ARG(9, source, 12) /* PLIC source of the port */

/* Registers of the port (pyv_npu/serving/port.py). */
enum {
    PORT_ARRIVED = 0x00, PORT_ID = 0x04, PORT_PROMPT = 0x08, PORT_ANSWER = 0x0c, PORT_POP = 0x10, PORT_STEP = 0x14,
    PORT_STATUS = 0x18, PORT_ACK = 0x1c, PORT_ANSWERED = 0x20, PORT_SLEEP = 0x24
};
enum { STATUS_DONE = 1, STATUS_OVER = 2 };
enum { PLIC_ENABLE = 0x2000, PLIC_THRESHOLD = 0x200000, PLIC_CLAIM = 0x200004 };
enum { SLOTS = 8192, RUN_MAX = 1024, BLOCKS_MAX = 1 << 18 };
#define NONE 0xffffffffu

struct request {
    uint32_t id, answer; /* answer: requested tokens */
    uint32_t tokens, computed, answered; /* prompt and generated tokens; tokens in the KV cache; generated tokens */
    uint32_t block_count, first, last; /* list of blocks */
    uint32_t swapped; /* blocks in swap space */
};

/* Step descriptor, read by the port when a step begins. */
static struct {
    uint32_t count, preempted, swapped, running, waiting, used;
    uint32_t schedule, allocate, submit, wait; /* cycles since the last step */
    struct {
        uint32_t id, tokens, context;
    } chunk[RUN_MAX];
    uint32_t out[RUN_MAX];
    struct {
        uint32_t id, tokens;
    } swap[RUN_MAX]; /* swapped out if requests were preempted, else swapped in */
} step;

static struct request slot[SLOTS];
static uint16_t queue[SLOTS]; /* ring of waiting requests */
static uint32_t queue_first, queue_count;
static uint16_t free_slots[SLOTS];
static uint32_t free_slot_count;
static uint16_t running[RUN_MAX], scheduled[RUN_MAX];
static uint32_t running_count;
static uint32_t next[BLOCKS_MAX]; /* links of block lists: of requests and of free blocks */
static uint32_t free_first, free_last, free_count, swap_count;
static struct npu_descriptor command[2 * RUN_MAX];
static uint32_t allocating;
static volatile bool done;

static void put(uint32_t reg, uint32_t value)
{
    mmio_write32(arg_port() + reg, value);
}

static uint32_t get(uint32_t reg)
{
    return mmio_read32(arg_port() + reg);
}

static void on_interrupt(void)
{
    const uint32_t source = mmio_read32(NPU_MAP_PLIC_BASE + PLIC_CLAIM);
    if (source == arg_source()) {
        done = done || (get(PORT_STATUS) & STATUS_DONE) != 0;
        put(PORT_ACK, 1);
        (void)get(PORT_STATUS); /* flush the posted write: the line is low */
    }
    mmio_write32(NPU_MAP_PLIC_BASE + PLIC_CLAIM, source);
    (void)mmio_read32(NPU_MAP_PLIC_BASE + PLIC_THRESHOLD);
}

/* -- blocks ------------------------------------------------------------------------------------------------------- */

static uint32_t blocks_for(uint32_t tokens)
{
    const uint32_t size = arg_block_size();
    return (tokens + size - 1) / size;
}

/* Allocate blocks for `tokens` more tokens. Return false if too few are free. */
static bool allocate_blocks(struct request *r, uint32_t tokens)
{
    const uint32_t begin = cycles(), required_blocks = blocks_for(r->computed + tokens);
    const bool fits = required_blocks <= r->block_count + free_count;
    while (fits && r->block_count < required_blocks) {
        const uint32_t block = free_first;
        free_first = next[block];
        free_count--;
        next[block] = NONE;
        if (r->block_count == 0) {
            r->first = block;
        } else {
            next[r->last] = block;
        }
        r->last = block;
        r->block_count++;
    }
    allocating += cycles() - begin;
    return fits;
}

static void release(struct request *r)
{
    const uint32_t begin = cycles();
    if (r->block_count != 0) {
        if (free_count == 0) {
            free_first = r->first;
        } else {
            next[free_last] = r->first;
        }
        free_last = r->last;
        free_count += r->block_count;
        r->block_count = 0;
    }
    allocating += cycles() - begin;
}

/* -- the scheduler ------------------------------------------------------------------------------------------------ */

static void take_arrivals(void)
{
    for (uint32_t n = get(PORT_ARRIVED); n > 0 && free_slot_count > 0; n--) {
        const uint16_t at = free_slots[--free_slot_count];
        slot[at] = (struct request){.id = get(PORT_ID), .tokens = get(PORT_PROMPT), .answer = get(PORT_ANSWER)};
        put(PORT_POP, 1);
        queue[(queue_first + queue_count++) % SLOTS] = at;
    }
}

static void schedule_chunk(uint16_t at, uint32_t tokens)
{
    struct request *r = &slot[at];
    scheduled[step.count] = at;
    step.chunk[step.count].id = r->id;
    step.chunk[step.count].tokens = tokens;
    step.chunk[step.count].context = r->computed;
    step.count++;
}

/* Record that the keys and values of a request are copied before the step. */
static void record_swap(const struct request *r)
{
    step.swap[step.swapped].id = r->id;
    step.swap[step.swapped++].tokens = r->computed;
}

static void preempt_last(void)
{
    const uint16_t at = running[--running_count];
    struct request *r = &slot[at];
    const uint32_t swap_size = blocks_for(r->computed);
    release(r);
    if (swap_size != 0 && swap_size <= swap_count) {
        swap_count -= swap_size;
        r->swapped = swap_size;
        record_swap(r);
    } else {
        r->computed = 0;
    }
    queue_first = (queue_first + SLOTS - 1) % SLOTS;
    queue[queue_first] = at;
    queue_count++;
    step.out[step.preempted++] = r->id;
}

static uint32_t min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void schedule(void)
{
    uint32_t budget = arg_budget();
    step.count = step.preempted = step.swapped = 0;
    for (uint32_t i = 0; i < running_count && budget > 0;) {
        struct request *r = &slot[running[i]];
        const uint32_t tokens = min(r->tokens - r->computed, budget);
        if (!allocate_blocks(r, tokens)) {
            preempt_last();
            continue;
        }
        schedule_chunk(running[i], tokens);
        budget -= tokens;
        i++;
    }
    while (step.preempted == 0 && budget > 0 && running_count < arg_most() && queue_count > 0) {
        const uint16_t at = queue[queue_first];
        struct request *r = &slot[at];
        const uint32_t missing = r->tokens - r->computed, tokens = min(missing, budget);
        const uint32_t required = blocks_for(arg_gate() != 0 ? r->tokens : r->computed + tokens) + arg_watermark();
        if ((tokens < missing && arg_chunks() == 0) || required > free_count) {
            break;
        }
        queue_first = (queue_first + 1) % SLOTS;
        queue_count--;
        (void)allocate_blocks(r, tokens);
        if (r->swapped != 0) {
            swap_count += r->swapped;
            r->swapped = 0;
            record_swap(r);
        }
        running[running_count++] = at;
        schedule_chunk(at, tokens);
        budget -= tokens;
    }
}

/* Submit a descriptor per copy (tokens) and per request (tokens of the chunk, context, first block). */
static void submit(void)
{
    struct npu_descriptor *d = command;
    for (uint32_t i = 0; i < step.swapped; i++, d++) {
        d->op = NPU_DESC(OPCODE, NPU_OPCODE_NOP);
        d->tile_m = step.swap[i].tokens;
        (void)npu_submit_prebuilt(d);
    }
    for (uint32_t i = 0; i < step.count; i++, d++) {
        d->op = NPU_DESC(OPCODE, NPU_OPCODE_NOP);
        d->tile_m = step.chunk[i].tokens;
        d->tile_n = step.chunk[i].context;
        d->tile_k = slot[scheduled[i]].first;
        (void)npu_submit_prebuilt(d);
    }
}

/* Finish a step: requests whose tokens are all computed have generated a new token. */
static void commit(void)
{
    for (uint32_t i = 0; i < step.count; i++) {
        struct request *r = &slot[scheduled[i]];
        r->computed += step.chunk[i].tokens;
        if (r->computed == r->tokens) {
            r->tokens++;
            r->answered++;
        }
    }
    uint32_t remaining = 0;
    for (uint32_t i = 0; i < running_count; i++) {
        struct request *r = &slot[running[i]];
        if (r->answered == r->answer) {
            release(r);
            put(PORT_ANSWERED, r->id);
            free_slots[free_slot_count++] = running[i];
        } else {
            running[remaining++] = running[i];
        }
    }
    running_count = remaining;
}

static void set_up(void)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        free_slots[i] = (uint16_t)i;
    }
    free_slot_count = SLOTS;
    for (uint32_t i = 0; i < arg_blocks(); i++) {
        next[i] = i + 1;
    }
    free_first = 0;
    free_count = arg_blocks();
    free_last = free_count - 1;
    swap_count = arg_swap_blocks();
    mmio_write32(NPU_MAP_PLIC_BASE + 4 * arg_source(), 1);
    mmio_write32(NPU_MAP_PLIC_BASE + PLIC_ENABLE, 1u << arg_source());
    mmio_write32(NPU_MAP_PLIC_BASE + PLIC_THRESHOLD, 0);
    (void)trap_on_interrupt(TRAP_EXTERNAL, on_interrupt);
}

int main(void)
{
    if (arg_port() == 0) {
        print("no requests: pyv-npu serve MODEL --scheduler firmware has some\n");
        return 0;
    }
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    if (arg_blocks() > BLOCKS_MAX || arg_most() > RUN_MAX) {
        print("at most %u blocks and %u requests that run\n", (unsigned)BLOCKS_MAX, (unsigned)RUN_MAX);
        return 1;
    }
    set_up();
    uint32_t steps = 0, wait_cycles = 0, begin = cycles();
    for (;;) {
        take_arrivals();
        schedule();
        if (step.count == 0) {
            if ((get(PORT_STATUS) & STATUS_OVER) != 0) {
                break;
            }
            put(PORT_SLEEP, 1);
            (void)get(PORT_STATUS); /* flush: arrivals interrupt from now on */
            (void)npu_sleep();
            begin = cycles();
            allocating = 0;
            continue;
        }
        const uint32_t schedule_end = cycles();
        step.running = running_count;
        step.waiting = queue_count;
        step.used = arg_blocks() - free_count;
        step.allocate = allocating;
        step.schedule = schedule_end - begin - allocating;
        submit();
        step.submit = cycles() - schedule_end;
        step.wait = wait_cycles;
        done = false;
        put(PORT_STEP, (uint32_t)(uintptr_t)&step);
        const uint32_t sleep_start = cycles();
        while (!done) {
            (void)npu_sleep();
        }
        begin = cycles();
        wait_cycles = begin - sleep_start;
        allocating = 0;
        commit();
        steps++;
    }
    print("mode %s: %u steps\n", npu.tight ? "tight" : "loose", (unsigned)steps);
    return 0;
}
