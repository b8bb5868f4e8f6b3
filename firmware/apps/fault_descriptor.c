/* Invalid descriptors: each completes with its error code, without a trap, and the queue continues.

   Not covered: E_WORKSPACE and E_POSITION, which only commands in macro form can raise. */
#include "busy.h"
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"

NPU_NEEDS_SPM(BUSY_SPM);

#define UNMAPPED 0x20000000u
#define SPM_OUT 0x40000u /* offset of the result in the scratchpad */

enum { EDITS = 3, SIDE = 16 };

static uint32_t in_dram[SIDE * SIDE / 4] __attribute__((aligned(64)));

/* Replacement of the bits in `mask` of the word at `offset` of a valid descriptor. */
struct edit {
    uint32_t offset, mask, value;
};

struct row {
    const char *text;
    int32_t code;
    uint32_t opcode; /* opcode of the valid descriptor: GEMM_T or LOAD */
    struct edit edits[EDITS];
};

#define WORD(name) offsetof(struct npu_descriptor, name), 0xffffffff
#define PART(word, part) offsetof(struct npu_descriptor, word), NPU_DESC_##part##_MASK
#define GEMM NPU_OPCODE_GEMM_T
#define LOAD NPU_OPCODE_LOAD

static const struct row rows[] = {
    {"opcode 19", NPU_E_OPCODE, GEMM, {{PART(op, OPCODE), 19}}},
    {"opcode 255", NPU_E_OPCODE, GEMM, {{PART(op, OPCODE), 255}}},
    {"ATTN_T without its extended block", NPU_E_UNSUPPORTED, GEMM, {{PART(op, OPCODE), NPU_OPCODE_ATTN_T}}},
    {"op[14:10]", NPU_E_RESERVED, GEMM, {{PART(op, OP_RESERVED), NPU_DESC(OP_RESERVED, 0x10)}}},
    {"accumulate on LOAD", NPU_E_RESERVED, LOAD, {{PART(flags, ACCUMULATE), NPU_DESC(ACCUMULATE, 1)}}},
    {"in0 misaligned", NPU_E_MISALIGNED, LOAD,
     {{PART(quant, TYPE_IN0), NPU_TYPE_INT32}, {PART(quant, TYPE_OUT), 0}, {WORD(out_addr), 2}}},
    {"out misaligned", NPU_E_MISALIGNED, GEMM, {{WORD(out_addr), SPM_OUT + 2}}},
    {"in0 of LOAD unmapped", NPU_E_ADDRESS, LOAD, {{WORD(in0_addr), UNMAPPED}}},
    {"in0 of GEMM_T unmapped", NPU_E_ADDRESS, GEMM, {{WORD(in0_addr), UNMAPPED}}},
    {"in0 above 4 GiB", NPU_E_ADDRESS, LOAD, {{offsetof(struct npu_descriptor, in0_addr) + 4, 0xffffffff, 0x100}}},
    {"tile_m 0", NPU_E_SHAPE, GEMM, {{WORD(tile_m), 0}}},
    {"tile_n 0", NPU_E_SHAPE, GEMM, {{WORD(tile_n), 0}}},
    {"tile_k 0", NPU_E_SHAPE, GEMM, {{WORD(tile_k), 0}}},
    {"tile_m 2^32-1", NPU_E_SHAPE, GEMM, {{WORD(tile_m), 0xffffffff}}},
    {"type 12", NPU_E_DATA_TYPE, GEMM, {{PART(quant, TYPE_IN0), 12}}},
    {"GEMM_T of INT32", NPU_E_DATA_TYPE, GEMM, {{PART(quant, TYPE_IN0), NPU_TYPE_INT32}}},
    {"GEMM_T without types", NPU_E_DATA_TYPE, GEMM, {{WORD(quant), 0}}},
    {"function 2 of GEMM_T", NPU_E_FUNCTION, GEMM, {{PART(flags, FUNCTION), NPU_DESC(FUNCTION, 2)}}},
    {"function 2 of LOAD", NPU_E_FUNCTION, LOAD, {{PART(flags, FUNCTION), NPU_DESC(FUNCTION, 2)}}},
    {"engine 14", NPU_E_AFFINITY, GEMM, {{PART(op, AFFINITY), NPU_DESC(AFFINITY, 15)}}},
    {"operand in DRAM", NPU_E_OPERAND_NOT_IN_SPM, GEMM, {{WORD(in0_addr), NPU_MAP_DRAM_BASE}}},
    {"operands outside the bank mask", NPU_E_OPERAND_OUTSIDE_BANKS, GEMM,
     {{PART(flags, BANK_MASK), NPU_DESC(BANK_MASK, 0x80)}}},
    {"accumulate without a sum", NPU_E_NO_ACCUMULATOR, GEMM, {{PART(flags, ACCUMULATE), NPU_DESC(ACCUMULATE, 1)}}},
    {"sum of 256 KiB", NPU_E_ACC_OVERFLOW, GEMM,
     {{PART(flags, FUNCTION), NPU_DESC(FUNCTION, NPU_GEMM_HOLD)}, {WORD(tile_m), 256}, {WORD(tile_n), 256}}},
    {"extended block misaligned", NPU_E_EXTENDED_BLOCK, GEMM,
     {{PART(op, EXTENDED), NPU_DESC_EXTENDED_MASK}, {WORD(param1), NPU_MAP_DRAM_BASE + 4}}},
    {"extended block unmapped", NPU_E_EXTENDED_BLOCK, GEMM,
     {{PART(op, EXTENDED), NPU_DESC_EXTENDED_MASK}, {WORD(param1), UNMAPPED}}},
};

/* Rows for devices with fewer units than the field can encode. */
static const struct row cluster_row = {
    "cluster 3", NPU_E_CLUSTER, GEMM, {{PART(op, CLUSTER), NPU_DESC(CLUSTER, 3)}}};
static const struct row bank_row = {
    "a bank mask that names no bank", NPU_E_BANK_MASK, GEMM, {{PART(flags, BANK_MASK), NPU_DESC(BANK_MASK, 1)}}};

static struct npu_descriptor valid_descriptor(uint32_t opcode)
{
    uint32_t spm = boot->spm_base;
    struct npu_descriptor descriptor = {
        .op = NPU_DESC(OPCODE, opcode), .in0_addr = spm, .out_addr = spm + SPM_OUT, .tile_m = SIDE, .tile_k = SIDE};
    if (opcode == NPU_OPCODE_LOAD) {
        descriptor.in0_addr = (uint32_t)(uintptr_t)in_dram;
        descriptor.quant = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8) | NPU_DESC(TYPE_OUT, NPU_TYPE_INT8);
    } else {
        descriptor.in1_addr = spm + SIDE * SIDE;
        descriptor.tile_n = SIDE;
        descriptor.quant = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8) | NPU_DESC(TYPE_IN1, NPU_TYPE_INT8) |
                     NPU_DESC(TYPE_OUT, NPU_TYPE_INT32);
    }
    return descriptor;
}

/* Return the descriptor that the device read, to which it writes the status back. */
static const volatile struct npu_descriptor *device_descriptor(const struct npu_descriptor *submitted)
{
    return npu.tight ? submitted : &npu_ring[(npu.tail - 1) & npu.mask];
}

static void expect_error_state(const char *text, int32_t ticket, int32_t code)
{
    bool state = npu_result(ticket) == -code && npu_read(NPU_REG_ERROR_TICKET) == (uint32_t)ticket &&
                 npu_read(NPU_REG_ERROR_CODE) == (uint32_t)code;
    print("%s: ticket %d, code %d, ERROR_TICKET %u, ERROR_CODE %u\n", text, (int)ticket, (int)-npu_result(ticket),
          (unsigned)npu_read(NPU_REG_ERROR_TICKET), (unsigned)npu_read(NPU_REG_ERROR_CODE));
    expect_true("error ticket", state);
}

static void expect_good(const char *text)
{
    static struct npu_descriptor descriptor;
    descriptor = valid_descriptor(NPU_OPCODE_GEMM_T);
    expect_equal(text, (uint32_t)npu_wait(npu_submit_prebuilt(&descriptor)), 0);
}

static void expect_row(const struct row *row)
{
    static struct npu_descriptor descriptor;
    descriptor = valid_descriptor(row->opcode);
    for (uint32_t i = 0; i < EDITS; i++) {
        const struct edit *edit = &row->edits[i];
        uint32_t *word = (uint32_t *)((uintptr_t)&descriptor + edit->offset);
        uint32_t value = edit->value;
        if (edit->offset == offsetof(struct npu_descriptor, out_addr)) {
            value += boot->spm_base;
        }
        *word = (*word & ~edit->mask) | value;
    }
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    int32_t ticket = npu_submit_prebuilt(&descriptor);
    expect_equal("waiting returns the code", (uint32_t)npu_wait(ticket), (uint32_t)-row->code);
    expect_error_state(row->text, ticket, row->code);
    expect_equal("IRQ_STATUS.ERROR", npu_read(NPU_REG_IRQ_STATUS), NPU_IRQ_ERROR_MASK);
    expect_good("a good command afterwards");
}

static void status_words(void)
{
    static struct npu_descriptor descriptor;
    descriptor = valid_descriptor(NPU_OPCODE_GEMM_T);
    descriptor.flags = NPU_DESC(WRITE_STATUS, 1);
    int32_t ticket = npu_submit_prebuilt(&descriptor);
    (void)npu_wait(ticket);
    expect_equal("status word: done", device_descriptor(&descriptor)->status, NPU_STATUS_DONE);
    expect_equal("status word: ticket", device_descriptor(&descriptor)->ticket, (uint32_t)ticket);

    descriptor = valid_descriptor(NPU_OPCODE_GEMM_T);
    descriptor.flags = NPU_DESC(WRITE_STATUS, 1);
    descriptor.tile_m = 0;
    ticket = npu_submit_prebuilt(&descriptor);
    (void)npu_wait(ticket);
    expect_equal("status word: error", device_descriptor(&descriptor)->status, NPU_STATUS_ERROR | NPU_E_SHAPE << 8);
    expect_equal("status word: ticket", device_descriptor(&descriptor)->ticket, (uint32_t)ticket);
}

/* Bypass the driver: publish a descriptor with a given ticket in the ring. */
static void publish(uint32_t ticket)
{
    struct npu_descriptor *slot = &npu_ring[npu.tail & npu.mask];
    *slot = (struct npu_descriptor){.op = NPU_DESC(OPCODE, NPU_OPCODE_NOP), .ticket = ticket};
    npu.tail++;
    npu.limit = npu_read(NPU_REG_QUEUE_HEAD) + npu.ring_size;
    __asm__ volatile("fence w, o" ::: "memory");
    npu_write(NPU_REG_DOORBELL, npu.tail);
}

/* Check invalid host tickets: the device reports the error by a ticket of its own; an older ticket is unchanged. */
static void host_tickets(void)
{
    uint32_t errors = npu_counter(ERRORS);
    npu_drain();
    publish(0x80000000);
    npu_drain();
    expect_equal("ticket 2^31: ERROR_CODE", npu_read(NPU_REG_ERROR_CODE), NPU_E_TICKET);
    expect_error_state("ticket 2^31", (int32_t)npu_read(NPU_REG_ERROR_TICKET), NPU_E_TICKET);

    int32_t older = busy_for(2000);
    publish((uint32_t)older);
    expect_equal("the older ticket of a duplicate", (uint32_t)npu_wait(older), 0);
    npu_drain();
    expect_equal("duplicate: ERROR_CODE", npu_read(NPU_REG_ERROR_CODE), NPU_E_TICKET);
    expect_true("duplicate: another ticket", npu_read(NPU_REG_ERROR_TICKET) != (uint32_t)older);
    expect_equal("errors", npu_counter(ERRORS) - errors, 2);
    expect_equal("reuse after completion", (uint32_t)npu_result(older), 0);
}

/* Check a ring at an unmapped address: HEAD advances past descriptors that cannot be fetched. */
static void ring_outside_memory(void)
{
    uint32_t head = npu_read(NPU_REG_QUEUE_HEAD), errors = npu_counter(ERRORS);
    npu_write(NPU_REG_CTRL, 0);
    npu_write(NPU_REG_QUEUE_BASE_LO, UNMAPPED);
    npu_write(NPU_REG_CTRL, NPU_CTRL_ENABLE_MASK);
    npu_write(NPU_REG_DOORBELL, head + 2);
    npu.tail = head + 2;
    struct npu_watch watch;
    npu_watch_begin(&watch);
    while ((npu_read(NPU_REG_QUEUE_HEAD) != head + 2 || npu_counter(ERRORS) - errors != 2) && npu_may_wait(&watch)) {
    }
    expect_equal("ring unmapped: ERROR_CODE", npu_read(NPU_REG_ERROR_CODE), NPU_E_FETCH);
    expect_equal("ring unmapped: HEAD", npu_read(NPU_REG_QUEUE_HEAD), head + 2);
    expect_equal("set up again", (uint32_t)npu_open(NPU_MODE_LOOSE), 0);
    expect_good("a good command afterwards");
}

static void soft_reset(void)
{
    int32_t ticket = busy_for(50000);
    uint32_t accepted = npu_counter(ACCEPTED);
    struct npu_watch watch;
    npu_watch_begin(&watch);
    while (!npu.tight && npu_read(NPU_REG_QUEUE_HEAD) != npu.tail && npu_may_wait(&watch)) {
    }
    npu_write(NPU_REG_IRQ_MASK, NPU_IRQ_RING_OVERFLOW_MASK);
    npu_write(NPU_REG_CTRL, NPU_CTRL_RESET_MASK);
    expect_equal("reset: the ticket in flight", (uint32_t)npu_result(ticket), (uint32_t)-NPU_E_RESET);
    expect_equal("reset: HEAD", npu_read(NPU_REG_QUEUE_HEAD), 0);
    expect_equal("reset: TAIL", npu_read(NPU_REG_QUEUE_TAIL), 0);
    expect_equal("reset: IRQ_STATUS", npu_read(NPU_REG_IRQ_STATUS), 0);
    expect_equal("reset: IRQ_MASK", npu_read(NPU_REG_IRQ_MASK), 0);
    expect_equal("reset: enable", npu_read(NPU_REG_CTRL) & NPU_CTRL_ENABLE_MASK, 0);
    expect_equal("reset: QUEUE_SIZE stays", npu_read(NPU_REG_QUEUE_SIZE), npu.ring_size);
    expect_true("reset: counters stay", npu_counter(ACCEPTED) >= accepted);
    expect_equal("set up again", (uint32_t)npu_open(NPU_MODE_AUTO), 0);
    expect_good("a good command afterwards");
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    print("mode %s\n", npu.tight ? "tight" : "loose");
    expect_good("a good command");
    uint32_t errors = npu_counter(ERRORS);
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        expect_row(&rows[i]);
    }
    expect_equal("errors", npu_counter(ERRORS) - errors, sizeof(rows) / sizeof(rows[0]));
    if (npu_read(NPU_REG_CLUSTERS) < 4) {
        expect_row(&cluster_row);
    }
    if (npu_read(NPU_REG_BANK_COUNT) < 8) {
        expect_row(&bank_row);
    }
    status_words();
    if (!npu.tight) {
        host_tickets();
        ring_outside_memory();
    }
    soft_reset();
    return expect_result("fault_descriptor");
}
