/* Submits n commands per phase, for latency measurement by the host: back to back, paced, with an interrupt for each
   completion, from prebuilt descriptors in memory; on request also tiles that are loaded before they are multiplied,
   and batches of descriptors per doorbell. Both modes produce the same scratchpad contents. */
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
NPU_ARG_IN(6, burst, 16, 0, NPU_COUNT_MAX) /* all but paced and tiles: commands between two drains, 0 no drain */
NPU_ARG(7, prefetch, 1) /* tiles: distance of loads ahead of products in tiles, at most 15 */
NPU_ARG(8, batch, 8) /* batches: descriptors per doorbell, at most 64 and the queue size */
NPU_ARG(9, values, 1) /* set by the platform; 0: timing only, results are not checked */

volatile uint32_t npu_commands; /* total number of commands, for the progress bar of the host */

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

/* TILES int8 operands, an identity matrix, TILES int32 results, PREFETCH_MAX + 1 buffers for loaded tiles. */
NPU_NEEDS_SPM(0xe4000);

/* Precomputed arguments of npu_submit, so that a burst measures only the submission. */
struct command {
    uint32_t op, in0, in1, out, mn, k, quant;
};
static struct command commands[TILES]; /* operand i times the identity */
static struct command loads[PREFETCH_MAX + 1][TILES]; /* memory tile i to a buffer */
static struct command buffered[PREFETCH_MAX + 1][TILES]; /* buffer times the identity, to result i */

static struct npu_descriptor prebuilt[TILES];
static uint8_t in_memory[TILES][TILE_BYTES] __attribute__((section(".noinit"), aligned(64)));
static uint32_t operands, identity, results, buffers; /* scratchpad addresses */
static uint32_t tile;
static uint32_t used_tiles; /* number of result tiles written */

static volatile uint32_t completions; /* COMPLETED as of the last interrupt */
static uint32_t retried; /* failed commands that were submitted again */

static uint32_t operand(uint32_t i)
{
    return operands + i % TILES * TILE_BYTES;
}

static uint32_t result(uint32_t i)
{
    return results + i % TILES * TILE_BYTES * sizeof(int32_t);
}

/* Fill operands and identity. Command i writes tile i % TILES to result i % TILES, independent of the timing. */
static void fill_scratchpad(void)
{
    operands = boot->spm_base;
    identity = operands + TILES * TILE_BYTES;
    results = identity + TILE_BYTES;
    buffers = results + TILES * TILE_BYTES * sizeof(int32_t);
    uint32_t state = 1;
    for (uint32_t i = 0; i < TILES; i++) {
        for (uint32_t offset = 0; offset < tile * tile; offset += 4) {
            state = state * 1664525 + 1013904223;
            *(volatile uint32_t *)(operand(i) + offset) = state;
            *(volatile uint32_t *)&in_memory[i][offset] = state;
        }
    }
    for (uint32_t offset = 0; offset < tile * tile; offset += 4) {
        *(volatile uint32_t *)(identity + offset) = 0;
    }
    for (uint32_t row = 0; row < tile; row++) {
        *(volatile uint8_t *)(identity + row * tile + row) = 1;
    }
}

static void check_scratchpad(void)
{
    print("result tiles: %u\n", (unsigned)used_tiles);
    if (arg_values() == 0) {
        return;
    }
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < used_tiles; i++) {
        const int8_t *expected = (const int8_t *)operand(i);
        const int32_t *output = (const int32_t *)result(i);
        for (uint32_t offset = 0; offset < tile * tile; offset++) {
            wrong += output[offset] != expected[offset];
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
            uint32_t offset = buffers + buffer * TILE_BYTES;
            loads[buffer][i] = (struct command){NPU_DESC(OPCODE, NPU_OPCODE_LOAD), (uint32_t)(uintptr_t)in_memory[i], 0,
                                                offset, NPU_MN(tile, 0), k, int8};
            buffered[buffer][i] = (struct command){gemm, offset, identity, result(i), mn, k, types};
        }
    }
}

NPU_INLINE void submit(const struct command *c, uint32_t flags)
{
    (void)npu_submit(c->op, flags, c->in0, c->in1, c->out, c->mn, c->k, c->quant);
}

static void update_used_tiles(uint32_t n)
{
    uint32_t tiles = n < TILES ? n : TILES;
    used_tiles = used_tiles > tiles ? used_tiles : tiles;
}

static void on_completion(void)
{
    completions = npu_completed();
}

/* Return the number of commands until the next drain. */
static uint32_t burst_length(uint32_t remaining)
{
    uint32_t limit = arg_burst();
    return limit == 0 || remaining < limit ? remaining : limit;
}

/* Submit back to back, with minimal work between two calls. */
static void burst(uint32_t n, uint32_t flags)
{
    const struct command *c = commands;
    while (n > 0) {
        uint32_t count = burst_length(n);
        n -= count;
        do {
            submit(c, flags);
            c = c + 1 == commands + TILES ? commands : c + 1;
        } while (--count > 0);
        if (n > 0) {
            npu_drain();
        }
    }
}

static void paced(uint32_t n)
{
    const uint32_t gap = arg_gap();
    uint32_t deadline = cycles();
    for (uint32_t i = 0; i < n; i++) {
        while ((int32_t)(cycles() - deadline) < 0) {
        }
        deadline += gap;
        submit(&commands[i % TILES], 0);
    }
}

/* Submit a load and a product per tile. Loads run `prefetch` tiles ahead, round robin over prefetch + 1 buffers. The
   device orders a product after its load, and a load after the product that reads its buffer. */
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

/* Submit `batch` descriptors per doorbell. Tight mode has no doorbell and submits each separately. */
static void batches(uint32_t n)
{
    const uint32_t batch = arg_batch();
    const struct command *c = commands;
    for (uint32_t remaining = n, until_drain = burst_length(n); remaining > 0;) {
        uint32_t count = remaining < batch ? remaining : batch;
        remaining -= count;
        until_drain -= until_drain < count ? until_drain : count;
        do {
            (void)npu_submit_stage(c->op, 0, c->in0, c->in1, c->out, c->mn, c->k, c->quant);
            c = c + 1 == commands + TILES ? commands : c + 1;
        } while (--count > 0);
        npu_submit_staged();
        if (until_drain == 0) {
            npu_drain();
            until_drain = burst_length(remaining);
        }
    }
}

/* Sleep until the handler has seen all completions. wfi wakes up with interrupts disabled, so none is missed. */
static void with_interrupts(uint32_t n, uint32_t target)
{
    npu_irq_enable(NPU_IRQ_DONE_MASK | NPU_IRQ_ERROR_MASK, on_completion);
    interrupts_on();
    burst(n, NPU_DESC(IRQ, 1));
    interrupts_off();
    while ((int32_t)(completions - target) < 0 && npu_sleep() == 0) {
    }
    npu_irq_disable();
}

static void from_memory(uint32_t n)
{
    const struct npu_descriptor *descriptor = prebuilt;
    while (n > 0) {
        uint32_t count = burst_length(n);
        n -= count;
        do {
            (void)npu_submit_prebuilt(descriptor);
            descriptor = descriptor + 1 == prebuilt + TILES ? prebuilt : descriptor + 1;
        } while (--count > 0);
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

/* Commands are idempotent: with a time-out, a phase with failed commands is repeated. */
static void phase(uint32_t kind, const char *name, uint32_t n)
{
    if ((arg_phases() & kind) == 0 || n == 0) {
        return;
    }
    update_used_tiles(n);
    uint32_t start, before, submitted, done, errors, failed, repeats = 0;
    bool retry;
    do {
        before = npu_completed();
        errors = npu_counter(ERRORS);
        start = cycles();
        submit_all(kind, n, before);
        submitted = cycles() - start;
        (void)npu_drain();
        done = cycles() - start;
        failed = npu_counter(ERRORS) - errors;
        retry = npu_repeat(repeats++, start, failed);
        retried += retry ? failed : 0;
    } while (retry);
    print("phase %s: %u commands, submitted in %u cycles, complete in %u\n", name, (unsigned)n, (unsigned)submitted,
          (unsigned)done);
    expect_equal("completed", npu_completed() - before, kind == PHASE_TILES ? 2 * n : n);
}

/* Return the number of commands of all phases. */
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
    update_used_tiles(arg_warmup());
    burst(arg_warmup(), 0);
    npu_drain();
    phase(PHASE_BURST, "burst", n);
    phase(PHASE_PACED, "paced", n);
    phase(PHASE_INTERRUPTS, "interrupts", n);
    phase(PHASE_PREBUILT, "prebuilt", n);
    phase(PHASE_TILES, "tiles", n);
    phase(PHASE_BATCHES, "batches", n);

    expect_equal("errors", npu_counter(ERRORS) - errors - retried, 0);
    if (arg_op() == NPU_OPCODE_GEMM_T) {
        check_scratchpad();
    }
    return expect_result("submit_latency");
}

NPU_NOISE("submitted in # cycles, complete in #");
