/* A load into the scratchpad and a store back, submitted by hand, each step in the order that the boundary asks for. A
   macro RACE_... breaks one rule (tests/firmware/test_sanitizer_mutations.py). */
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

enum { BYTES = 256, SMALL = 64 };

static uint8_t in[BYTES] __attribute__((aligned(64)));
static volatile uint8_t out[BYTES] __attribute__((aligned(64)));
#ifdef RACE_OUTSIDE
static volatile uint8_t little[SMALL] __attribute__((aligned(64)));
#endif
#ifdef RACE_UNWRITTEN
static volatile uint32_t nothing __attribute__((section(".noinit")));
#endif
static struct npu_descriptor mine __attribute__((aligned(64)));

static int32_t submit(uint32_t opcode, const volatile void *from, const volatile void *to, uint32_t flags)
{
    uint32_t tail = npu.tail;
    struct npu_descriptor *slot = npu.tight ? &mine : &npu_ring[tail & npu.mask];
#ifndef RACE_SLOT
    while (!npu.tight && tail - npu_read(NPU_REG_QUEUE_HEAD) >= npu.ring_size) {
    }
#endif
    tail++;
    *slot = (struct npu_descriptor){
        .op = NPU_DESC(OPCODE, opcode), .flags = flags, .in0_addr = (uint32_t)(uintptr_t)from,
        .out_addr = (uint32_t)(uintptr_t)to, .tile_m = 1, .tile_k = BYTES,
        .quant = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8) | NPU_DESC(TYPE_OUT, NPU_TYPE_INT8), .ticket = tail};
#ifdef RACE_TICKET
    slot->ticket = 1;
#endif
    if (npu.tight) {
        return npu_enqcmd_t(slot, 0);
    }
#ifndef RACE_FENCE
    __asm__ volatile("fence w, o" ::: "memory");
#endif
#ifdef RACE_WEAK_FENCE
    slot->param1 = 0;
    __asm__ volatile("fence r, o" ::: "memory");
#endif
#ifdef RACE_LATE_OPERAND
    in[0]++;
#endif
    npu_write(NPU_REG_DOORBELL, tail);
    npu.tail = tail;
    return (int32_t)slot->ticket;
}

#ifdef RACE_FREED
static __attribute__((noinline)) int32_t submit_frame(void *spm)
{
    volatile uint8_t frame[BYTES];
    for (uint32_t i = 0; i < BYTES; i++) {
        frame[i] = (uint8_t)i;
    }
    return submit(NPU_OPCODE_LOAD, frame, spm, 0);
}
#endif

static volatile uint32_t interrupts;
static volatile int32_t awaited;

static void handler(void)
{
#ifdef RACE_ACKNOWLEDGE
    (void)npu_result(awaited);
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
#else
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    (void)npu_result(awaited);
#endif
    interrupts++;
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        return 1;
    }
    void *spm = (void *)(uintptr_t)boot->spm_base;
    for (uint32_t i = 0; i < BYTES; i++) {
        in[i] = (uint8_t)i;
    }
    int32_t loaded = 0, ticket = 0;
    for (uint32_t i = 0; i < 6; i++) {
        loaded = submit(NPU_OPCODE_LOAD, in, spm, 0);
    }
#ifdef RACE_OPERAND
    in[3] = 1;
#endif
#ifdef RACE_STREAMS
    (void)submit(NPU_OPCODE_LOAD, in, spm, NPU_DESC(STREAM, 1));
#endif
    (void)npu_wait(loaded);
    npu_drain();
#ifdef RACE_FREED
    loaded = submit_frame(spm);
    (void)npu_wait(loaded);
#endif
    in[3] = 2;
    uint32_t flags = NPU_DESC(WRITE_STATUS, 1) | NPU_DESC(IRQ, 1);
#ifdef RACE_STATUS
    flags = 0;
#endif
#ifdef RACE_OUTSIDE
    ticket = submit(NPU_OPCODE_STORE, spm, little, flags);
#else
    ticket = submit(NPU_OPCODE_STORE, spm, out, flags);
#endif
#ifdef RACE_RESULT
    uint32_t early = out[5];
    __asm__ volatile("" ::"r"(early));
#endif
#ifdef RACE_OUTPUT
    out[7] = 9;
#endif
    volatile struct npu_descriptor *slot = npu.tight ? &mine : &npu_ring[(npu.tail - 1) & npu.mask];
#ifdef RACE_DESCRIPTOR
    slot->param0 = 0;
#endif
    for (uint32_t i = 0; i < 2000 && (slot->status & 0xff) == NPU_STATUS_PENDING; i++) {
    }
    (void)npu_wait(ticket);
#ifdef RACE_STALE
    for (uint32_t i = 0; i < 2; i++) {
        in[0] = (uint8_t)(i + 1);
        (void)npu_wait(submit(NPU_OPCODE_LOAD, in, spm, 0));
    }
#endif
#ifdef RACE_UNWRITTEN
    uint32_t garbage = nothing;
    __asm__ volatile("" ::"r"(garbage));
#endif
    npu_drain();
    trap_on_interrupt(TRAP_EXTERNAL, handler);
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    npu_write(NPU_REG_IRQ_MASK, NPU_IRQ_DONE_MASK);
    interrupts_on();
    awaited = submit(NPU_OPCODE_LOAD, in, spm, NPU_DESC(IRQ, 1));
    while (interrupts == 0) {
    }
    interrupts_off();
    (void)npu_wait(awaited);
    return out[5] == 5 ? 0 : 2;
}
