/* Submits n commands in each of four ways, for the host to measure: as fast as the queue takes them, paced, with an
   interrupt for each completion, and from descriptors that lie in memory. Both modes leave the same scratchpad. */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG(0, n, 1000) /* commands of each phase */
NPU_ARG(1, phases, 15) /* sum of 1 burst, 2 paced, 4 interrupts, 8 prebuilt */
NPU_ARG(2, gap, 500) /* paced: cycles from one submission to the next */
NPU_ARG(3, op, NPU_OPCODE_GEMM_T) /* 3 GEMM_T, 0 NOP */
NPU_ARG(4, tile, 64) /* GEMM_T: rows, columns and depth, at most 128 */
NPU_ARG(5, warmup, 0) /* commands before the phases */

enum { PHASE_BURST = 1, PHASE_PACED = 2, PHASE_INTERRUPTS = 4, PHASE_PREBUILT = 8, TILES = 8, TILE_MAX = 128 };

NPU_NEEDS_SPM(0xa4000); /* TILES int8 operands, one identity matrix, TILES int32 results */

/* What npu_submit takes, ready to be loaded into registers: a burst shall not wait for its program. */
static struct command {
    uint32_t op, in0, in1, out, mn, k, quant;
} commands[TILES];

static struct npu_descriptor prebuilt[TILES];
static uint32_t operands, identity, results; /* in the scratchpad */
static uint32_t tile;
static uint32_t used; /* result tiles that some command wrote */

static volatile uint32_t seen; /* completions that the interrupt handler knows of */

static uint32_t operand(uint32_t i)
{
    return operands + i % TILES * TILE_MAX * TILE_MAX;
}

static uint32_t result(uint32_t i)
{
    return results + i % TILES * TILE_MAX * TILE_MAX * sizeof(int32_t);
}

/* Different tiles times the identity: command i leaves tile i % TILES in result i % TILES, whatever the timing. */
static void fill_scratchpad(void)
{
    operands = boot->spm_base;
    identity = operands + TILES * TILE_MAX * TILE_MAX;
    results = identity + TILE_MAX * TILE_MAX;
    uint32_t state = 1;
    for (uint32_t i = 0; i < TILES; i++) {
        for (uint32_t at = 0; at < tile * tile; at += 4) {
            state = state * 1664525 + 1013904223;
            *(volatile uint32_t *)(operand(i) + at) = state;
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
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < used; i++) {
        const int8_t *wanted = (const int8_t *)operand(i);
        const int32_t *made = (const int32_t *)result(i);
        for (uint32_t at = 0; at < tile * tile; at++) {
            wrong += made[at] != wanted[at];
        }
    }
    print("result tiles: %u\n", (unsigned)used);
    expect_equal("wrong elements", wrong, 0);
}

static void build_commands(void)
{
    const uint32_t types = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8) | NPU_DESC(TYPE_IN1, NPU_TYPE_INT8) |
                           NPU_DESC(TYPE_OUT, NPU_TYPE_INT32);
    for (uint32_t i = 0; i < TILES; i++) {
        if (arg_op() == NPU_OPCODE_NOP) {
            commands[i] = (struct command){.op = NPU_DESC(OPCODE, NPU_OPCODE_NOP)};
            prebuilt[i] = (struct npu_descriptor){.op = commands[i].op};
            continue;
        }
        commands[i] = (struct command){NPU_DESC(OPCODE, NPU_OPCODE_GEMM_T), operand(i), identity, result(i),
                                       NPU_MN(tile, tile), NPU_K(tile, 0), types};
        prebuilt[i] = (struct npu_descriptor){.op = commands[i].op,
                                              .in0_addr = operand(i),
                                              .in1_addr = identity,
                                              .out_addr = result(i),
                                              .tile_m = tile,
                                              .tile_n = tile,
                                              .tile_k = tile,
                                              .quant = types};
    }
}

static void submit(uint32_t i, uint32_t flags)
{
    const struct command *c = &commands[i % TILES];
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

static void burst(uint32_t n, uint32_t flags)
{
    for (uint32_t i = 0; i < n; i++) {
        submit(i, flags);
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
        submit(i, 0);
    }
}

/* Sleeps until the handler has seen all completions. wfi wakes with interrupts off, so none is missed. */
static void with_interrupts(uint32_t n, uint32_t wanted)
{
    npu_irq_enable(NPU_IRQ_DONE_MASK | NPU_IRQ_ERROR_MASK, on_completion);
    interrupts_on();
    burst(n, NPU_DESC(IRQ, 1));
    interrupts_off();
    while ((int32_t)(seen - wanted) < 0) {
        __asm__ volatile("wfi");
        interrupts_on();
        interrupts_off();
    }
    npu_irq_disable();
}

static void from_memory(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        (void)npu_submit_prebuilt(&prebuilt[i % TILES]);
    }
}

static void phase(uint32_t kind, const char *name, uint32_t n)
{
    if ((arg_phases() & kind) == 0 || n == 0) {
        return;
    }
    note_used(n);
    uint32_t before = npu_completed();
    uint32_t start = cycles();
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
    default:
        from_memory(n);
        break;
    }
    uint32_t submitted = cycles() - start;
    npu_drain();
    uint32_t done = cycles() - start;
    print("phase %s: %u commands, submitted in %u cycles, complete in %u\n", name, (unsigned)n, (unsigned)submitted,
          (unsigned)done);
    expect_equal("completed", npu_completed() - before, n);
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
    print("mode %s, op %u, tile %u\n", npu.tight ? "tight" : "loose", (unsigned)arg_op(), (unsigned)tile);
    fill_scratchpad();
    build_commands();

    uint32_t n = arg_n();
    uint32_t errors = npu_counter(ERRORS);
    note_used(arg_warmup());
    burst(arg_warmup(), 0);
    npu_drain();
    phase(PHASE_BURST, "burst", n);
    phase(PHASE_PACED, "paced", n);
    phase(PHASE_INTERRUPTS, "interrupts", n);
    phase(PHASE_PREBUILT, "prebuilt", n);

    expect_equal("errors", npu_counter(ERRORS) - errors, 0);
    if (arg_op() == NPU_OPCODE_GEMM_T) {
        check_scratchpad();
    }
    return expect_result("submit_latency");
}
