/* Races between firmware and NPU, each beside the same program in the order that the boundary asks for: `--arg
   race=ADDRESS` names the function of a race, `--arg correct=1` runs it repaired. RACE(modes, rule that the sanitizer
   must find, name); tests/firmware/test_races.py reads these three. */
#include <stdbool.h>

#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG(0, race, 0)
NPU_ARG(1, correct, 0)

#define RACE(modes, rule, name) __attribute__((used, retain, noinline)) static void name(const bool correct)
#define FENCE(sets) __asm__ volatile("fence " sets ::: "memory")
#define COMPILER_BARRIER() __asm__ volatile("" ::: "memory")
#define USE(value) __asm__ volatile("" ::"r"(value))

enum { BYTES = 256, ROW = 64, STRIDE = 128, LAP = 4 /* entries of the ring: npu.queue.size of the test */ };
enum { LOAD = NPU_OPCODE_LOAD, STORE = NPU_OPCODE_STORE, WRITE_BACK = NPU_DESC(WRITE_STATUS, 1) };

static volatile uint8_t in[BYTES] __attribute__((aligned(64)));
static volatile uint8_t other[BYTES] __attribute__((aligned(64)));
static volatile uint8_t out[BYTES] __attribute__((aligned(64)));
static volatile uint8_t second[BYTES] __attribute__((aligned(64)));
static volatile uint8_t little[ROW] __attribute__((aligned(64)));
static volatile uint8_t unwritten[BYTES] __attribute__((section(".noinit"), aligned(64)));
static struct npu_descriptor mine __attribute__((aligned(64)));
static struct npu_extended block __attribute__((aligned(64)));

/* The scratchpad; its first BYTES bytes are loaded before a race begins. */
static volatile uint8_t *spm(uint32_t offset)
{
    return (volatile uint8_t *)(uintptr_t)(boot->spm_base + offset);
}

static volatile uint32_t *word(volatile uint8_t *at)
{
    return (volatile uint32_t *)(uintptr_t)at;
}

static void set(volatile uint8_t *at, uint8_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++) {
        at[i] = value;
    }
}

static uint32_t sum(volatile const uint8_t *at, uint32_t bytes)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        total += at[i];
    }
    return total;
}

/* -- submitting by hand ------------------------------------------------------------------------------------------- */

/* A slot of the ring that is free, or the buffer of tight mode. */
static struct npu_descriptor *next_slot(void)
{
    while (!npu.tight && npu.tail - npu_read(NPU_REG_QUEUE_HEAD) >= npu.ring_size) {
    }
    return npu.tight ? &mine : &npu_ring[npu.tail & npu.mask];
}

static void fill_rows(struct npu_descriptor *slot, uint32_t opcode, const volatile void *from, const volatile void *to,
                      uint32_t flags, uint32_t rows, uint32_t row, uint32_t stride)
{
    *slot = (struct npu_descriptor){
        .op = NPU_DESC(OPCODE, opcode), .flags = flags, .in0_addr = (uint32_t)(uintptr_t)from,
        .out_addr = (uint32_t)(uintptr_t)to, .tile_m = rows, .tile_k = row, .param0 = stride,
        .quant = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8) | NPU_DESC(TYPE_OUT, NPU_TYPE_INT8), .ticket = npu.tail + 1};
    COMPILER_BARRIER();
}

static void fill(struct npu_descriptor *slot, uint32_t opcode, const volatile void *from, const volatile void *to,
                 uint32_t flags)
{
    fill_rows(slot, opcode, from, to, flags, 1, BYTES, 0);
}

static int32_t doorbell(uint32_t count)
{
    npu.tail += count;
    npu_write(NPU_REG_DOORBELL, npu.tail);
    return (int32_t)npu.tail;
}

static int32_t hand_over(const struct npu_descriptor *slot)
{
    if (!npu.tight) {
        FENCE("w, o");
        return doorbell(1);
    }
    int32_t ticket;
    do {
        ticket = npu_enqcmd_t(slot, 0);
    } while (ticket == -NPU_EBUSY);
    return ticket;
}

static int32_t submit(uint32_t opcode, const volatile void *from, const volatile void *to, uint32_t flags)
{
    struct npu_descriptor *slot = next_slot();
    fill(slot, opcode, from, to, flags);
    return hand_over(slot);
}

static int32_t submit_rows(uint32_t opcode, const volatile void *from, const volatile void *to, uint32_t flags)
{
    struct npu_descriptor *slot = next_slot();
    fill_rows(slot, opcode, from, to, flags, 2, ROW, STRIDE);
    return hand_over(slot);
}

static int32_t submit_product(uint32_t m)
{
    struct npu_descriptor *slot = next_slot();
    block = (struct npu_extended){.m = m, .n = 8, .k = 8, .ld0 = 8, .ld1 = 8, .ldo = 32,
                                  .workspace = boot->spm_base + 4096, .workspace_bytes = 32768};
    *slot = (struct npu_descriptor){
        .op = NPU_DESC(OPCODE, NPU_OPCODE_GEMM_T) | NPU_DESC(EXTENDED, 1), .in0_addr = (uint32_t)(uintptr_t)in,
        .flags = NPU_DESC(FUNCTION, NPU_GEMM_WRITE), .in1_addr = (uint32_t)(uintptr_t)other,
        .out_addr = (uint32_t)(uintptr_t)out, .param1 = (uint32_t)(uintptr_t)&block,
        .tile_m = 8, .tile_n = 8, .tile_k = 8,
        .quant = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8) | NPU_DESC(TYPE_IN1, NPU_TYPE_INT8) |
                 NPU_DESC(TYPE_OUT, NPU_TYPE_INT32), .ticket = npu.tail + 1};
    return hand_over(slot);
}

static void wait_if(bool correct, int32_t ticket)
{
    if (correct) {
        (void)npu_wait(ticket);
    }
}

/* -- doorbells without the fence that orders them ------------------------------------------------------------------ */

#define FENCE_RACE(name, sets)                    \
    RACE(LOOSE, unordered_doorbell, name)         \
    {                                             \
        fill(next_slot(), LOAD, in, spm(0), 0);   \
        if (correct) {                            \
            FENCE("w, o");                        \
        } else {                                  \
            sets;                                 \
        }                                         \
        (void)doorbell(1);                        \
    }

FENCE_RACE(fence_none, COMPILER_BARRIER())
FENCE_RACE(fence_of_loads, FENCE("r, o"))
FENCE_RACE(fence_of_memory, FENCE("rw, rw"))
FENCE_RACE(fence_to_input, FENCE("w, i"))
FENCE_RACE(fence_of_devices, FENCE("io, io"))
FENCE_RACE(fence_backwards, FENCE("o, w"))
FENCE_RACE(fence_of_code, __asm__ volatile(".word 0x0000100f" ::: "memory"))

RACE(LOOSE, unordered_doorbell, late_field)
{
    struct npu_descriptor *slot = next_slot();
    fill(slot, LOAD, in, spm(0), 0);
    FENCE("w, o");
    slot->flags = WRITE_BACK;
    if (correct) {
        FENCE("w, o");
    }
    (void)doorbell(1);
}

static void late_byte(uint32_t at, const bool correct)
{
    fill(next_slot(), LOAD, in, spm(0), 0);
    FENCE("w, o");
    in[at]++;
    if (correct) {
        FENCE("rw, orw");
    }
    (void)doorbell(1);
}

RACE(LOOSE, unordered_doorbell, late_operand)
{
    late_byte(0, correct);
}

RACE(LOOSE, unordered_doorbell, late_last_byte)
{
    late_byte(BYTES - 1, correct);
}

RACE(LOOSE, unordered_doorbell, late_row)
{
    fill_rows(next_slot(), LOAD, in, spm(0), 0, 2, ROW, STRIDE);
    FENCE("w, o");
    in[correct ? ROW : STRIDE] = 1; /* between the rows, or in the second */
    (void)doorbell(1);
}

RACE(LOOSE, unordered_doorbell, late_second_slot)
{
    fill(next_slot(), LOAD, in, spm(0), 0);
    FENCE("w, o");
    struct npu_descriptor *slot = &npu_ring[(npu.tail + 1) & npu.mask];
    fill(slot, LOAD, other, spm(BYTES), 0);
    slot->ticket = npu.tail + 2;
    if (correct) {
        FENCE("w, o");
    }
    (void)doorbell(2);
}

/* -- results that are read too early ------------------------------------------------------------------------------- */

#define RESULT_RACE(name, flags, read)                          \
    RACE(BOTH, unobserved_result, name)                         \
    {                                                           \
        wait_if(correct, submit(STORE, spm(0), out, flags));    \
        read;                                                   \
    }

RESULT_RACE(result_word, 0, USE(*word(out)))
RESULT_RACE(result_last_byte, 0, USE(out[BYTES - 1]))
RESULT_RACE(result_half, 0, USE(*(volatile uint16_t *)(uintptr_t)(out + 130)))
RESULT_RACE(result_copied, 0, USE(sum(out, BYTES)))
RESULT_RACE(result_reserved, 0, __asm__ volatile("lr.w t0, (%0)" ::"r"(word(out)) : "t0", "memory"))
RESULT_RACE(result_added_to, 0, __asm__ volatile("amoadd.w t0, x0, (%0)" ::"r"(word(out)) : "t0", "memory"))
RESULT_RACE(result_with_write_back, WRITE_BACK, USE(out[9]))

RACE(BOTH, unobserved_result, result_after_time)
{
    int32_t ticket = submit(STORE, spm(0), out, 0);
    for (uint32_t i = 0; i < 3000; i++) {
        COMPILER_BARRIER();
    }
    wait_if(correct, ticket);
    USE(out[3]);
}

RACE(BOTH, unobserved_result, result_after_older)
{
    int32_t older = submit(LOAD, in, spm(BYTES), 0), ticket = submit(STORE, spm(0), out, 0);
    (void)npu_wait(correct ? ticket : older);
    USE(out[3]);
}

RACE(BOTH, unobserved_result, result_after_other_stream)
{
    int32_t ticket = submit(STORE, spm(0), out, 0), younger = submit(LOAD, in, spm(BYTES), NPU_DESC(STREAM, 1));
    (void)npu_wait(correct ? ticket : younger);
    USE(out[3]);
}

RACE(BOTH, unobserved_result, result_after_barrier)
{
    int32_t ticket = submit(STORE, spm(0), out, 0);
    npu_barrier(NPU_SCOPE_GLOBAL, 0); /* orders commands, not the core */
    wait_if(correct, ticket);
    USE(out[3]);
}

RACE(LOOSE, unobserved_result, result_after_fetch)
{
    int32_t ticket = submit(STORE, spm(0), out, 0);
    while (npu_read(NPU_REG_QUEUE_HEAD) != npu.tail) {
    }
    wait_if(correct, ticket);
    USE(out[3]);
}

RACE(BOTH, unobserved_result, result_after_depth)
{
    int32_t ticket = submit(STORE, spm(0), out, 0);
    while (npu_read(NPU_REG_PERF_QUEUE_DEPTH_LO) != 0) { /* accepted, and not started */
    }
    wait_if(correct, ticket);
    USE(out[3]);
}

RACE(BOTH, unobserved_result, result_in_scratchpad)
{
    wait_if(correct, submit(LOAD, in, spm(BYTES), 0));
    USE(*spm(BYTES));
}

RACE(BOTH, unobserved_result, result_row)
{
    set(out, 0, BYTES);
    (void)submit_rows(STORE, spm(0), out, 0);
    USE(out[correct ? ROW : STRIDE]); /* between the rows, or in the second */
}

RACE(BOTH, unobserved_result, result_of_product)
{
    wait_if(correct, submit_product(8));
    USE(*word(out));
}

/* -- memory that is overwritten while it belongs to the device ------------------------------------------------------- */

#define OPERAND_RACE(name, overwrite)                       \
    RACE(BOTH, overwritten_in_flight, name)                 \
    {                                                       \
        wait_if(correct, submit(LOAD, in, spm(BYTES), 0));  \
        overwrite;                                          \
    }

OPERAND_RACE(operand_byte, in[3] = 1)
OPERAND_RACE(operand_last_word, *word(in + BYTES - 4) = 1)
OPERAND_RACE(operand_set, set(in, 7, BYTES))
OPERAND_RACE(operand_swapped, __asm__ volatile("amoswap.w t0, x0, (%0)" ::"r"(word(in)) : "t0", "memory"))
OPERAND_RACE(operand_conditional,
             __asm__ volatile("lr.w t0, (%0)\n\tsc.w t0, x0, (%0)" ::"r"(word(in)) : "t0", "memory"))

RACE(BOTH, overwritten_in_flight, operand_row)
{
    (void)submit_rows(LOAD, in, spm(BYTES), 0);
    in[correct ? ROW : STRIDE] = 1; /* between the rows, or in the second */
}

RACE(BOTH, overwritten_in_flight, operand_of_younger)
{
    int32_t older = submit(LOAD, in, spm(BYTES), 0);
    (void)submit(LOAD, other, spm(2 * BYTES), 0);
    (void)npu_wait(older);
    (correct ? in : other)[0] = 1;
}

RACE(BOTH, overwritten_in_flight, output_byte)
{
    wait_if(correct, submit(STORE, spm(0), out, 0));
    out[7] = 9;
}

RACE(LOOSE, overwritten_in_flight, operand_after_fetch)
{
    int32_t ticket = submit(LOAD, in, spm(BYTES), 0);
    while (npu_read(NPU_REG_QUEUE_HEAD) != npu.tail) {
    }
    wait_if(correct, ticket);
    in[3] = 1;
}

RACE(BOTH, overwritten_in_flight, operand_in_scratchpad)
{
    wait_if(correct, submit(STORE, spm(0), out, 0));
    *spm(0) = 1;
}

RACE(BOTH, overwritten_in_flight, block_field)
{
    wait_if(correct, submit_product(8));
    block.m = 4;
}

RACE(BOTH, overwritten_in_flight, block_of_failed)
{
    wait_if(correct, submit_product(0)); /* ends in an error */
    block.m = 4;
}

RACE(TIGHT, overwritten_in_flight, descriptor_with_write_back)
{
    wait_if(correct, submit(LOAD, in, spm(BYTES), WRITE_BACK));
    mine.param0 = 0;
}

/* -- slots of the ring ----------------------------------------------------------------------------------------------- */

RACE(LOOSE, ring_slot_reused, slot_without_head)
{
    for (uint32_t i = 0; i < 2 * LAP; i++) {
        struct npu_descriptor *slot = correct ? next_slot() : &npu_ring[npu.tail & npu.mask];
        fill(slot, LOAD, in, spm(BYTES), 0);
        (void)hand_over(slot);
    }
}

RACE(LOOSE, ring_slot_reused, slot_with_old_head)
{
    uint32_t head = npu_read(NPU_REG_QUEUE_HEAD);
    for (uint32_t i = 0; i < 2 * LAP; i++) {
        if (correct || i == LAP) {
            while (npu.tail - head >= (correct ? LAP : 2 * LAP)) {
                head = npu_read(NPU_REG_QUEUE_HEAD);
            }
        }
        fill(&npu_ring[npu.tail & npu.mask], LOAD, in, spm(BYTES), 0);
        (void)hand_over(0);
    }
}

RACE(LOOSE, ring_slot_reused, slot_changed)
{
    struct npu_descriptor *slot = next_slot();
    fill(slot, LOAD, in, spm(BYTES), 0);
    wait_if(correct, hand_over(slot));
    slot->param0 = 0;
}

RACE(LOOSE, ring_slot_reused, slot_cleared)
{
    struct npu_descriptor *slot = next_slot();
    fill(slot, LOAD, in, spm(BYTES), 0);
    (void)hand_over(slot);
    while (correct && npu_read(NPU_REG_QUEUE_HEAD) != npu.tail) {
    }
    *slot = (struct npu_descriptor){0};
    COMPILER_BARRIER();
}

RACE(LOOSE, ring_slot_reused, slot_with_write_back)
{
    int32_t first = submit(STORE, spm(0), out, WRITE_BACK);
    for (uint32_t i = 1; i < LAP; i++) {
        (void)submit(STORE, spm(0), out, WRITE_BACK);
    }
    while (npu_read(NPU_REG_QUEUE_HEAD) != npu.tail) {
    }
    wait_if(correct, first);
    (void)submit(LOAD, in, spm(BYTES), 0);
}

/* -- doorbells that count too many ------------------------------------------------------------------------------------- */

static void run_lap(void)
{
    for (uint32_t i = 0; i < LAP; i++) {
        (void)npu_wait(submit(LOAD, in, spm(BYTES), 0));
    }
}

RACE(LOOSE, old_descriptor, one_too_many)
{
    run_lap();
    fill(next_slot(), LOAD, in, spm(BYTES), 0);
    FENCE("w, o");
    (void)doorbell(correct ? 1 : 2);
}

RACE(LOOSE, old_descriptor, one_too_many_at_first)
{
    fill(next_slot(), LOAD, in, spm(BYTES), 0);
    FENCE("w, o");
    (void)doorbell(correct ? 1 : 2);
}

RACE(LOOSE, old_descriptor, slot_skipped)
{
    run_lap();
    fill(&npu_ring[(npu.tail + !correct) & npu.mask], LOAD, in, spm(BYTES), 0);
    FENCE("w, o");
    (void)doorbell(correct ? 1 : 2);
}

RACE(LOOSE, old_descriptor, slot_not_filled)
{
    run_lap();
    if (correct) {
        fill(next_slot(), LOAD, in, spm(BYTES), 0);
    }
    FENCE("w, o");
    (void)doorbell(1);
}

RACE(LOOSE, old_descriptor, slot_of_another_lap)
{
    run_lap();
    fill(&npu_ring[(npu.tail + (correct ? 0 : 2)) & npu.mask], LOAD, in, spm(BYTES), 0);
    FENCE("w, o");
    (void)doorbell(1);
}

/* -- two writers that nothing orders --------------------------------------------------------------------------------- */

#define STREAM(number) NPU_DESC(STREAM, number)
#define WRITERS_RACE(name, first, between, then)     \
    RACE(BOTH, unordered_write, name)                \
    {                                                \
        int32_t ticket = first;                      \
        between;                                     \
        (void)then;                                  \
        (void)npu_wait(ticket);                      \
    }

WRITERS_RACE(writers_of_scratchpad, submit(LOAD, in, spm(BYTES), 0), (void)0,
             submit(LOAD, other, spm(BYTES), STREAM(!correct)))
WRITERS_RACE(writers_of_memory, submit(STORE, spm(0), out, 0), (void)0, submit(STORE, spm(0), out, STREAM(!correct)))
WRITERS_RACE(writers_waited_for, submit(STORE, spm(0), out, 0), wait_if(correct, ticket),
             submit(STORE, spm(0), out, STREAM(3)))
WRITERS_RACE(writers_of_one_half, submit(LOAD, in, spm(BYTES), 0), (void)0,
             submit(LOAD, other, spm(correct ? 2 * BYTES : BYTES + BYTES / 2), STREAM(1)))
WRITERS_RACE(writers_of_rows, submit_rows(STORE, spm(0), out, 0), (void)0,
             submit_rows(STORE, spm(0), out + (correct ? ROW : ROW / 2), STREAM(1)))
WRITERS_RACE(barrier_of_one_stream, submit(STORE, spm(0), out, 0),
             if (correct) npu_barrier(NPU_SCOPE_GLOBAL, 0); else npu_barrier(NPU_SCOPE_TILE, 1),
             submit(STORE, spm(0), out, STREAM(1)))

RACE(BOTH, unordered_write, barrier_too_early)
{
    if (!correct) {
        npu_barrier(NPU_SCOPE_GLOBAL, 0);
    }
    (void)submit(STORE, spm(0), out, 0);
    if (correct) {
        npu_barrier(NPU_SCOPE_GLOBAL, 0);
    }
    (void)submit(STORE, spm(0), out, STREAM(1));
}

RACE(BOTH, unordered_write, writer_behind_reader)
{
    (void)submit(LOAD, in, spm(BYTES), 0);
    if (correct) { /* waits for the first writer, and the second for it */
        (void)submit(STORE, spm(BYTES), out, STREAM(2));
    }
    (void)submit(LOAD, other, spm(BYTES), STREAM(1));
}

/* -- status words, tickets, interrupts --------------------------------------------------------------------------------- */

static volatile struct npu_descriptor *submit_polled(uint32_t flags)
{
    struct npu_descriptor *slot = next_slot();
    fill(slot, LOAD, in, spm(BYTES), flags);
    slot->status = NPU_STATUS_PENDING;
    (void)hand_over(slot);
    return slot;
}

RACE(BOTH, status_not_written_back, status_polled)
{
    volatile struct npu_descriptor *slot = submit_polled(correct ? WRITE_BACK : 0);
    for (uint32_t i = 0; i < 2000 && (slot->status & 0xff) == NPU_STATUS_PENDING; i++) {
    }
}

RACE(BOTH, status_not_written_back, status_with_interrupt)
{
    volatile struct npu_descriptor *slot = submit_polled(NPU_DESC(IRQ, 1) | (correct ? WRITE_BACK : 0));
    for (uint32_t i = 0; i < 2000 && *(volatile uint8_t *)&slot->status == NPU_STATUS_PENDING; i++) {
    }
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
}

RACE(LOOSE, ticket_reused, ticket_constant)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct npu_descriptor *slot = next_slot();
        fill(slot, LOAD, in, spm(BYTES), 0);
        slot->ticket = correct ? npu.tail + 1 : 77;
        (void)hand_over(slot);
    }
}

RACE(LOOSE, ticket_reused, ticket_by_slot)
{
    for (uint32_t i = 0; i < LAP + 1; i++) {
        struct npu_descriptor *slot = next_slot();
        uint32_t ticket = correct ? npu.tail + 1 : 100 + (npu.tail & npu.mask);
        fill(slot, LOAD, in, spm(BYTES), 0);
        slot->ticket = ticket;
        (void)hand_over(slot);
    }
}

static volatile uint32_t interrupts;
static volatile int32_t awaited;

static void look_first(void)
{
    (void)npu_result(awaited);
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    interrupts++;
}

static void count_first(void)
{
    USE(npu_read(NPU_REG_COMPLETED));
    npu_write(NPU_REG_IRQ_ACK, NPU_IRQ_ALL);
    USE(npu_read(NPU_REG_ID_VERSION)); /* the acknowledgement has arrived */
    interrupts++;
}

static void acknowledge_first(void)
{
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    (void)npu_result(awaited);
    interrupts++;
}

static void interrupted_by(void (*handler)(void))
{
    trap_on_interrupt(TRAP_EXTERNAL, handler);
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    npu_write(NPU_REG_IRQ_MASK, NPU_IRQ_DONE_MASK);
    interrupts_on();
    awaited = submit(LOAD, in, spm(BYTES), NPU_DESC(IRQ, 1));
    while (interrupts == 0) {
    }
    interrupts_off();
}

RACE(BOTH, interrupt_lost, handler_looks_first)
{
    interrupted_by(correct ? acknowledge_first : look_first);
}

RACE(BOTH, interrupt_lost, handler_counts_first)
{
    interrupted_by(correct ? acknowledge_first : count_first);
}

/* -- buffers that end too early ------------------------------------------------------------------------------------------ */

static __attribute__((noinline)) int32_t load_frame(const bool correct)
{
    volatile uint8_t frame[BYTES] __attribute__((aligned(64)));
    set(frame, 3, BYTES);
    int32_t ticket = submit(LOAD, frame, spm(BYTES), 0);
    wait_if(correct, ticket);
    return ticket;
}

static __attribute__((noinline)) int32_t store_frame(const bool correct)
{
    volatile uint8_t frame[BYTES] __attribute__((aligned(64)));
    int32_t ticket = submit(STORE, spm(0), frame, 0);
    wait_if(correct, ticket);
    return ticket;
}

static __attribute__((noinline)) int32_t nest(const bool correct)
{
    int32_t ticket = load_frame(correct);
    COMPILER_BARRIER();
    return ticket + 0;
}

RACE(BOTH, freed_in_flight, frame_of_operand)
{
    (void)npu_wait(load_frame(correct));
}

RACE(BOTH, freed_in_flight, frame_of_output)
{
    (void)npu_wait(store_frame(correct));
}

RACE(BOTH, freed_in_flight, frame_of_callee)
{
    int32_t ticket = nest(correct);
    (void)submit(LOAD, in, spm(2 * BYTES), 0);
    (void)npu_wait(ticket);
}

RACE(BOTH, outside_symbol, output_too_long)
{
    (void)npu_wait(submit(STORE, spm(0), correct ? out : little, 0));
}

RACE(BOTH, outside_symbol, output_too_late)
{
    (void)npu_wait(submit(STORE, spm(0), correct ? out : out + ROW, 0));
}

RACE(BOTH, outside_symbol, row_too_many)
{
    (void)npu_wait(submit_rows(STORE, spm(0), correct ? out : little, 0));
}

/* -- lines of the L2, without coherence --------------------------------------------------------------------------------- */

static void cache_block(uint32_t operation, const volatile uint8_t *at) /* cbo.clean is 1, cbo.flush 2 */
{
    for (uint32_t i = 0; i < BYTES; i += 64) {
        if (operation == 1) {
            __asm__ volatile(".insn i 0x0f, 2, x0, %0, 1" ::"r"(at + i) : "memory");
        } else {
            __asm__ volatile(".insn i 0x0f, 2, x0, %0, 2" ::"r"(at + i) : "memory");
        }
    }
}

static void flush_l2(void)
{
    npu_write(NPU_REG_CTRL, npu_read(NPU_REG_CTRL) | NPU_CTRL_FLUSH_L2_MASK);
    USE(npu_read(NPU_REG_CTRL));
}

RACE(BOTH, stale_line, line_of_operand)
{
    for (uint8_t i = 1; i < 3; i++) {
        in[0] = i;
        if (correct) {
            flush_l2();
        }
        (void)npu_wait(submit(LOAD, in, spm(BYTES), 0));
    }
}

RACE(BOTH, stale_line, line_of_result)
{
    (void)npu_wait(submit(STORE, spm(0), out, 0));
    if (correct) {
        flush_l2();
    }
    USE(sum(out, BYTES));
}

RACE(BOTH, stale_line, line_cleaned)
{
    (void)npu_wait(submit(LOAD, in, spm(BYTES), 0));
    in[0] = 5;
    cache_block(correct ? 2 : 1, in);
    (void)npu_wait(submit(LOAD, in, spm(BYTES), 0));
}

/* -- memory that nothing has written --------------------------------------------------------------------------------------- */

RACE(BOTH, uninitialised_read, unwritten_by_core)
{
    if (correct) {
        set(unwritten, 0, 8);
    }
    USE(*word(unwritten));
}

RACE(BOTH, uninitialised_read, unwritten_operand)
{
    set(unwritten, 0, correct ? BYTES : BYTES - 1);
    (void)npu_wait(submit(LOAD, unwritten, spm(BYTES), 0));
}

RACE(BOTH, uninitialised_read, unwritten_row)
{
    set(unwritten, 0, ROW);
    set(unwritten + STRIDE, 0, correct ? ROW : ROW - 4);
    (void)npu_wait(submit_rows(LOAD, unwritten, spm(BYTES), 0));
}

RACE(BOTH, uninitialised_read, unwritten_scratchpad)
{
    if (correct) {
        (void)submit(LOAD, in, spm(8 * BYTES), 0);
    }
    (void)npu_wait(submit(STORE, spm(8 * BYTES), out, 0));
}

RACE(BOTH, uninitialised_read, written_too_late)
{
    (void)submit(correct ? LOAD : STORE, correct ? in : spm(8 * BYTES), correct ? spm(8 * BYTES) : out, 0);
    (void)npu_wait(submit(correct ? STORE : LOAD, correct ? spm(8 * BYTES) : in, correct ? out : spm(8 * BYTES), 0));
}

/* -- resets with commands in flight ------------------------------------------------------------------------------------------- */

static void reset(void)
{
    npu_write(NPU_REG_CTRL, NPU_CTRL_RESET_MASK);
}

RACE(BOTH, overwritten_in_flight, reset_not_read_back)
{
    (void)submit(LOAD, in, spm(BYTES), 0);
    reset();
    if (correct) {
        USE(npu_read(NPU_REG_CTRL));
    }
    in[3] = 1;
    (void)npu_open(NPU_MODE_AUTO);
}

RACE(BOTH, overwritten_in_flight, reset_without_fence)
{
    (void)submit(LOAD, in, spm(BYTES), 0);
    reset();
    if (correct) {
        FENCE("o, w");
    } else {
        FENCE("w, w");
    }
    in[3] = 1;
    (void)npu_open(NPU_MODE_AUTO);
}

RACE(BOTH, uninitialised_read, reset_result)
{
    (void)submit(STORE, spm(0), out, 0);
    reset();
    (void)npu_open(NPU_MODE_AUTO);
    if (correct) {
        (void)submit(STORE, spm(0), out, 0);
        npu_drain(); /* tickets count from 1 again: npu_wait may see an older one */
    }
    USE(out[3]);
}

RACE(BOTH, uninitialised_read, reset_operand)
{
    (void)submit(STORE, spm(0), out, 0);
    reset();
    (void)npu_open(NPU_MODE_AUTO);
    if (correct) {
        set(out, 0, BYTES);
    }
    (void)npu_wait(submit(LOAD, out, spm(BYTES), 0));
}

RACE(LOOSE, ring_slot_reused, reset_slot)
{
    struct npu_descriptor *slot = next_slot();
    fill(slot, LOAD, in, spm(BYTES), 0);
    (void)hand_over(slot);
    reset();
    if (correct) {
        USE(npu_read(NPU_REG_CTRL));
    }
    slot->flags = 0;
    (void)npu_open(NPU_MODE_AUTO);
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        return 1;
    }
    set(in, 1, BYTES);
    set(other, 2, BYTES);
    (void)npu_wait(submit(LOAD, in, spm(0), 0));
    npu_drain();
    ((void (*)(bool))(uintptr_t)arg_race())(arg_correct() != 0);
    npu_drain();
    return 0;
}
