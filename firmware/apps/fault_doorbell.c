/* Doorbells that claim more than the ring has room for, or go backwards: ignored and reported; then the queue goes on. */
#include "busy.h"
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"

NPU_NEEDS_SPM(BUSY_SPM);

static void ring(uint32_t tail)
{
    __asm__ volatile("fence w, o" ::: "memory");
    npu_write(NPU_REG_DOORBELL, tail);
}

/* The doorbell of `tail` is ignored: TAIL stays, nothing is submitted, RING_OVERFLOW says so. */
static void expect_ignored(const char *text, uint32_t tail)
{
    uint32_t before = npu_read(NPU_REG_QUEUE_TAIL), submitted = npu_counter(SUBMITTED);
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    ring(tail);
    uint32_t after = npu_read(NPU_REG_QUEUE_TAIL);
    print("%s: doorbell 0x%08x, TAIL 0x%08x, then 0x%08x, IRQ_STATUS 0x%x\n", text, (unsigned)tail, (unsigned)before,
          (unsigned)after, (unsigned)npu_read(NPU_REG_IRQ_STATUS));
    expect_equal("TAIL unchanged", after, before);
    expect_equal("RING_OVERFLOW", npu_read(NPU_REG_IRQ_STATUS) & NPU_IRQ_RING_OVERFLOW_MASK, NPU_IRQ_RING_OVERFLOW_MASK);
    expect_equal("submitted", npu_counter(SUBMITTED) - submitted, 0);
}

static void write_nops(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        npu_ring[(npu.tail + i) & npu.mask] = (struct npu_descriptor){.op = NPU_DESC(OPCODE, NPU_OPCODE_NOP)};
    }
}

static void publish(uint32_t count)
{
    write_nops(count);
    npu.tail += count;
    ring(npu.tail);
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    if (npu.tight) {
        print("mode tight: the doorbell belongs to loose mode\n");
        return expect_result("fault_doorbell");
    }
    uint32_t size = npu.ring_size, start = npu.tail, completed = npu_completed();
    print("mode loose, ring of %u\n", (unsigned)size);

    expect_ignored("one more than an empty ring holds", start + size + 1);
    expect_ignored("backwards by 1", start - 1);
    expect_ignored("half the number space away", start + 0x80000000u);

    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    ring(start);
    expect_equal("the same tail again: RING_OVERFLOW", npu_read(NPU_REG_IRQ_STATUS), 0);

    /* Exactly the size of the ring under one doorbell is legal. */
    publish(size);
    expect_equal("a whole ring: RING_OVERFLOW", npu_read(NPU_REG_IRQ_STATUS) & NPU_IRQ_RING_OVERFLOW_MASK, 0);
    npu_drain();
    expect_equal("a whole ring: completed", npu_completed() - completed, size);
    expect_equal("a whole ring: HEAD", npu_read(NPU_REG_QUEUE_HEAD), start + size);

    /* Full ring behind a busy device: one more is refused, the others are untouched. */
    npu.limit = npu.tail + size;
    (void)busy_for(40000);
    while (npu_read(NPU_REG_QUEUE_HEAD) != npu.tail) {
    }
    expect_ignored("one more than fits behind a busy device", npu.tail + size + 1);
    npu_drain();

    completed = npu_completed();
    publish(1);
    expect_ignored("backwards by 1 after one command", npu.tail - 1);
    npu_drain();
    expect_equal("afterwards: completed", npu_completed() - completed, 1);
    expect_equal("errors", npu_counter(ERRORS), 0);
    return expect_result("fault_doorbell");
}
