/* Doorbells beyond the capacity of the ring or backwards: ignored and reported, and the queue continues. */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"

static void ring(uint32_t tail)
{
    __asm__ volatile("fence w, o" ::: "memory");
    npu_write(NPU_REG_DOORBELL, tail);
}

/* Check that the doorbell `tail` is ignored: TAIL unchanged, nothing submitted, RING_OVERFLOW set. */
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

/* Publish NOPs by one doorbell. */
static void publish(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        npu_ring[(npu.tail + i) & npu.mask] = (struct npu_descriptor){.op = NPU_DESC(OPCODE, NPU_OPCODE_NOP)};
    }
    npu.tail += count;
    ring(npu.tail);
}

int main(void)
{
    if (npu_open(NPU_MODE_LOOSE) != 0) { /* available in tight mode, too */
        print("no NPU\n");
        return 1;
    }
    uint32_t size = npu.ring_size, start = npu.tail, completed = npu_completed();
    print("custom instructions 0x%x, ring of %u\n", (unsigned)npu.caps, (unsigned)size);

    expect_ignored("one more than an empty ring holds", start + size + 1);
    expect_ignored("backwards by 1", start - 1);
    expect_ignored("half the number space away", start + 0x80000000u);

    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    ring(start);
    expect_equal("the same tail again: RING_OVERFLOW", npu_read(NPU_REG_IRQ_STATUS), 0);

    /* A doorbell for exactly the size of the ring is legal. */
    publish(size);
    expect_equal("a whole ring: RING_OVERFLOW", npu_read(NPU_REG_IRQ_STATUS) & NPU_IRQ_RING_OVERFLOW_MASK, 0);
    npu_drain();
    expect_equal("a whole ring: completed", npu_completed() - completed, size);
    expect_equal("a whole ring: HEAD", npu_read(NPU_REG_QUEUE_HEAD), start + size);

    /* A disabled device fetches nothing, so published descriptors occupy the ring. */
    npu_write(NPU_REG_CTRL, 0);
    completed = npu_completed();
    publish(size / 2);
    expect_ignored("one more than half a ring has room for", npu.tail + size - size / 2 + 1);
    publish(size - size / 2);
    expect_ignored("one more than a full ring", npu.tail + 1);
    expect_equal("a full ring: TAIL - HEAD", npu_read(NPU_REG_QUEUE_TAIL) - npu_read(NPU_REG_QUEUE_HEAD), size);
    expect_equal("disabled: completed", npu_completed() - completed, 0);
    npu_write(NPU_REG_CTRL, NPU_CTRL_ENABLE_MASK);
    npu_drain();
    expect_equal("a full ring: completed", npu_completed() - completed, size);

    completed = npu_completed();
    publish(1);
    expect_ignored("backwards by 1 after one command", npu.tail - 1);
    npu_drain();
    expect_equal("afterwards: completed", npu_completed() - completed, 1);
    expect_equal("errors", npu_counter(ERRORS), 0);
    return expect_result("fault_doorbell");
}
