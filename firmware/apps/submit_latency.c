/* Submits n commands in each of several ways, for the host to measure: as fast as the queue takes them, paced, with an
   interrupt for each completion, from descriptors that lie in memory; on request tiles that are loaded before they are
   multiplied, and several descriptors under one doorbell. Both modes leave the same scratchpad. */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG_IN(0, n, 1000, 0, NPU_COUNT_MAX) /* commands of each phase */
NPU_ARG(1, phases, 15) /* sum of 1 burst, 2 paced, 4 interrupts, 8 prebuilt, 16 tiles, 32 batches */
NPU_ARG_IN(2, gap, 500, 0, NPU_COUNT_MAX) /* paced: cycles from one submission to the next */
NPU_ARG(3, op, NPU_OPCODE_GEMM_T) /* 3 GEMM_T, 0 NOP */
NPU_ARG(4, tile, 64) /* GEMM_T: rows, columns and depth, at most 128 */
NPU_ARG_IN(5, warmup, 0, 0, NPU_COUNT_MAX) /* commands before the phases */
NPU_ARG_IN(6, burst, 16, 0, NPU_COUNT_MAX) /* all but paced and tiles: commands until the queue is drained, 0 never */
NPU_ARG(7, prefetch, 1) /* tiles: how many tiles the loads run ahead, at most 15 */
NPU_ARG(8, batch, 8) /* batches: descriptors under one doorbell, at most 64 and the ring */
NPU_ARG(9, values, 1) /* 0: the NPU computes nothing, so results are not checked; the platform says it */

volatile uint32_t npu_commands; /* to be submitted, for the host's progress bar */

enum {
    PHASE_BURST = 1,
    PHASE_PACED = 2,
    PHASE_INTERRUPTS = 4,
    PHASE_PREBUILT = 8,
    PHASE_TILES = 16,
    PHASE_BATCHES = 32,
    TILES = 8,
    TILE_MAX = 128,
    TILE_BYTES = TILE_MAX * TILE_MAX,
    PREFETCH_MAX = 15,
    BATCH_MAX = 64,
};

/* TILES int8 operands, one identity matrix, TILES int32 results, buffers for tiles on their way. */
NPU_NEEDS_SPM(0xe4000);

/* What npu_submit takes, ready to be loaded into registers: a burst shall not wait for its program. */
struct command {
    uint32_t op, in0, in1, out, mn, k, quant;
};
static struct command commands[TILES]; /* operand i times the identity */
static struct command loads[PREFETCH_MAX + 1][TILES]; /* tile i from memory into a buffer */
static struct command buffered[PREFETCH_MAX + 1][TILES]; /* a buffer times the identity into result i */

static struct npu_descriptor prebuilt[TILES];
static uint8_t in_memory[TILES][TILE_BYTES] __attribute__((section(".noinit"), aligned(64)));
static uint32_t operands, identity, results, buffers; /* in the scratchpad */
static uint32_t tile;
static uint32_t used; /* result tiles that some command wrote */

static volatile uint32_t seen; /* completions that the interrupt handler knows of */
static uint32_t repeated; /* commands that failed and were submitted again */

static uint32_t operand(uint32_t i)
{
    return operands + i % TILES * TILE_BYTES;
}

static uint32_t result(uint32_t i)
{
    return results + i % TILES * TILE_BYTES * sizeof(int32_t);
}

/* Different tiles times the identity: command i leaves tile i % TILES in result i % TILES, whatever the timing. */
static void fill_scratchpad(void)
{
    operands = boot->spm_base;
    identity = operands + TILES * TILE_BYTES;
    results = identity + TILE_BYTES;
    buffers = results + TILES * TILE_BYTES * sizeof(int32_t);
    uint32_t state = 1;
    for (uint32_t i = 0; i < TILES; i++) {
        for (uint32_t at = 0; at < tile * tile; at += 4) {
            state = state * 1664525 + 1013904223;
            *(volatile uint32_t *)(operand(i) + at) = state;
            *(volatile uint32_t *)&in_memory[i][at] = state;
        }
    }
    for (uint32_t at = 0; at < tile * tile; at += 4) {
        *(volatile uint32_t *)(identity + at) = 0;
    }
    for (uint32_t row = 0; row < tile; row++) {
        *(volatile uint8_t *)(identity + row * tile + row) = 1;
    }
}

static void check_scratchpad(void)
{
    print("result tiles: %u\n", (unsigned)used);
    if (arg_values() == 0) {
        return;
    }
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < used; i++) {
        const int8_t *wanted = (const int8_t *)operand(i);
        const int32_t *made = (const int32_t *)result(i);
        for (uint32_t at = 0; at < tile * tile; at++) {
            wrong += made[at] != wanted[at];
        }
    }
    expect_equal("wrong elements", wrong, 0);
}

static void build_commands(void)
{
    const uint32_t int8 = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8);
    const uint32_t types = int8 | NPU_DESC(TYPE_IN1, NPU_TYPE_INT8) | NPU_DESC(TYPE_OUT, NPU_TYPE_INT32);
    const uint32_t gemm = NPU_DESC(OPCODE, NPU_OPCODE_GEMM_T), mn = NPU_MN(tile, tile), k = NPU_K(tile, 0);
    for (uint32_t i = 0; i < TILES; i++) {
        if (arg_op() == NPU_OPCODE_NOP) {
            commands[i] = (struct command){.op = NPU_DESC(OPCODE, NPU_OPCODE_NOP)};
            prebuilt[i] = (struct npu_descriptor){.op = commands[i].op};
            continue;
        }
        commands[i] = (struct command){gemm, operand(i), identity, result(i), mn, k, types};
        prebuilt[i] = (struct npu_descriptor){.op = gemm,
                                              .in0_addr = operand(i),
                                              .in1_addr = identity,
                                              .out_addr = result(i),
                                              .tile_m = tile,
                                              .tile_n = tile,
                                              .tile_k = tile,
                                              .quant = types};
        for (uint32_t buffer = 0; buffer <= PREFETCH_MAX; buffer++) {
            uint32_t at = buffers + buffer * TILE_BYTES;
            loads[buffer][i] = (struct command){NPU_DESC(OPCODE, NPU_OPCODE_LOAD), (uint32_t)(uintptr_t)in_memory[i], 0,
                                                at, NPU_MN(tile, 0), k, int8};
            buffered[buffer][i] = (struct command){gemm, at, identity, result(i), mn, k, types};
        }
    }
}

NPU_INLINE void submit(const struct command *c, uint32_t flags)
{
    (void)npu_submit(c->op, flags, c->in0, c->in1, c->out, c->mn, c->k, c->quant);
}

static void note_used(uint32_t n)
{
    uint32_t tiles = n < TILES ? n : TILES;
    used = used > tiles ? used : tiles;
}

static void on_completion(void)
{
    seen = npu_completed();
}

/* Commands until the next drain. */
static uint32_t burst_of(uint32_t left)
{
    uint32_t most = arg_burst();
    return most == 0 || left < most ? left : most;
}

/* Nothing but the call between two submissions. */
static void burst(uint32_t n, uint32_t flags)
{
    const struct command *c = commands;
    while (n > 0) {
        uint32_t now = burst_of(n);
        n -= now;
        do {
            submit(c, flags);
            c = c + 1 == commands + TILES ? commands : c + 1;
        } while (--now > 0);
        if (n > 0) {
            npu_drain();
        }
    }
}

static void paced(uint32_t n)
{
    const uint32_t gap = arg_gap();
    uint32_t due = cycles();
    for (uint32_t i = 0; i < n; i++) {
        while ((int32_t)(cycles() - due) < 0) {
        }
        due += gap;
        submit(&commands[i % TILES], 0);
    }
}

/* A load and a product for each tile; loads run `prefetch` tiles ahead, each into the next of prefetch + 1 buffers. The
   device keeps a product behind its load, and a load behind the product that reads its buffer. */
static void tiles(uint32_t n)
{
    const uint32_t ahead = arg_prefetch(), count = ahead + 1;
    uint32_t loaded = 0, load_buffer = 0, buffer = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (; loaded < n && loaded <= i + ahead; loaded++) {
            submit(&loads[load_buffer][loaded % TILES], 0);
            load_buffer = load_buffer + 1 == count ? 0 : load_buffer + 1;
        }
        submit(&buffered[buffer][i % TILES], 0);
        buffer = buffer + 1 == count ? 0 : buffer + 1;
    }
}

/* `batch` descriptors under one doorbell; tight mode has no doorbell and submits each by itself. */
static void batches(uint32_t n)
{
    const uint32_t batch = arg_batch();
    const struct command *c = commands;
    for (uint32_t left = n, until_drain = burst_of(n); left > 0;) {
        uint32_t now = left < batch ? left : batch;
        left -= now;
        until_drain -= until_drain < now ? until_drain : now;
        do {
            (void)npu_submit_stage(c->op, 0, c->in0, c->in1, c->out, c->mn, c->k, c->quant);
            c = c + 1 == commands + TILES ? commands : c + 1;
        } while (--now > 0);
        npu_submit_staged();
        if (until_drain == 0) {
            npu_drain();
            until_drain = burst_of(left);
        }
    }
}

/* Sleeps until the handler has seen all completions. wfi wakes with interrupts off, so none is missed. */
static void with_interrupts(uint32_t n, uint32_t wanted)
{
    npu_irq_enable(NPU_IRQ_DONE_MASK | NPU_IRQ_ERROR_MASK, on_completion);
    interrupts_on();
    burst(n, NPU_DESC(IRQ, 1));
    interrupts_off();
    while ((int32_t)(seen - wanted) < 0 && npu_sleep() == 0) {
    }
    npu_irq_disable();
}

static void from_memory(uint32_t n)
{
    const struct npu_descriptor *descriptor = prebuilt;
    while (n > 0) {
        uint32_t now = burst_of(n);
        n -= now;
        do {
            (void)npu_submit_prebuilt(descriptor);
            descriptor = descriptor + 1 == prebuilt + TILES ? prebuilt : descriptor + 1;
        } while (--now > 0);
        if (n > 0) {
            npu_drain();
        }
    }
}

static void submit_all(uint32_t kind, uint32_t n, uint32_t before)
{
    switch (kind) {
    case PHASE_BURST:
        burst(n, 0);
        break;
    case PHASE_PACED:
        paced(n);
        break;
    case PHASE_INTERRUPTS:
        with_interrupts(n, before + n);
        break;
    case PHASE_TILES:
        tiles(n);
        break;
    case PHASE_BATCHES:
        batches(n);
        break;
    default:
        from_memory(n);
        break;
    }
}

/* Commands leave the same results however often they are executed: with a time-out, failed ones are submitted again. */
static void phase(uint32_t kind, const char *name, uint32_t n)
{
    if ((arg_phases() & kind) == 0 || n == 0) {
        return;
    }
    note_used(n);
    uint32_t start, before, submitted, done, errors, failed, repeats = 0;
    bool again;
    do {
        before = npu_completed();
        errors = npu_counter(ERRORS);
        start = cycles();
        submit_all(kind, n, before);
        submitted = cycles() - start;
        (void)npu_drain();
        done = cycles() - start;
        failed = npu_counter(ERRORS) - errors;
        again = npu_repeat(repeats++, start, failed);
        repeated += again ? failed : 0;
    } while (again);
    print("phase %s: %u commands, submitted in %u cycles, complete in %u\n", name, (unsigned)n, (unsigned)submitted,
          (unsigned)done);
    expect_equal("completed", npu_completed() - before, kind == PHASE_TILES ? 2 * n : n);
}

/* Commands of all phases. */
static uint32_t total(uint32_t n)
{
    uint32_t count = arg_warmup();
    for (uint32_t kind = PHASE_BURST; kind <= PHASE_BATCHES; kind <<= 1) {
        count += (arg_phases() & kind) == 0 ? 0 : kind == PHASE_TILES ? 2 * n : n;
    }
    return count;
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    tile = arg_tile();
    if ((arg_op() != NPU_OPCODE_GEMM_T && arg_op() != NPU_OPCODE_NOP) || tile == 0 || tile % 4 != 0 || tile > TILE_MAX) {
        print("op must be 3 (GEMM_T) or 0 (NOP), tile a multiple of 4 up to 128\n");
        return 2;
    }
    bool batched = (arg_phases() & PHASE_BATCHES) != 0;
    if (batched && (arg_batch() == 0 || arg_batch() > BATCH_MAX || arg_batch() > npu.ring_size)) {
        print("batch must be 1 to 64 and at most the queue size\n");
        return 2;
    }
    if (arg_prefetch() > PREFETCH_MAX) {
        print("prefetch must be at most 15\n");
        return 2;
    }
    if ((arg_phases() & PHASE_TILES) != 0 && arg_op() != NPU_OPCODE_GEMM_T) {
        print("phase 16, tiles, needs op 3\n");
        return 2;
    }
    print("mode %s, op %u, tile %u\n", npu.tight ? "tight" : "loose", (unsigned)arg_op(), (unsigned)tile);
    fill_scratchpad();
    build_commands();

    uint32_t n = arg_n();
    npu_commands = total(n);
    uint32_t errors = npu_counter(ERRORS);
    note_used(arg_warmup());
    burst(arg_warmup(), 0);
    npu_drain();
    phase(PHASE_BURST, "burst", n);
    phase(PHASE_PACED, "paced", n);
    phase(PHASE_INTERRUPTS, "interrupts", n);
    phase(PHASE_PREBUILT, "prebuilt", n);
    phase(PHASE_TILES, "tiles", n);
    phase(PHASE_BATCHES, "batches", n);

    expect_equal("errors", npu_counter(ERRORS) - errors - repeated, 0);
    if (arg_op() == NPU_OPCODE_GEMM_T) {
        check_scratchpad();
    }
    return expect_result("submit_latency");
}

NPU_NOISE("submitted in # cycles, complete in #");
