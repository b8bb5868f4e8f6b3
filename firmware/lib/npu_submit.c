/* Hot path, on which latency is measured. Each function is one complete submission without calls.

   Both modes write the same 64 bytes from the same registers. Loose mode publishes them with a fence and a doorbell,
   tight mode with one instruction. */
#include "npu_driver.h"
#include "runtime.h"

/* In .sbss, so that it is addressed relative to gp in one instruction. */
struct npu npu __attribute__((section(".sbss.npu")));
struct npu_descriptor npu_ring[NPU_RING_CAPACITY]
    __attribute__((section(".noinit"), aligned(2 * NPU_BUFFERS * sizeof(struct npu_descriptor))));

#define HOT __attribute__((noinline, noclone))

enum { TICKET_MASK = 0x7fffffff, DESCRIPTOR_WORDS = sizeof(struct npu_descriptor) / sizeof(uint32_t) };

typedef uint32_t __attribute__((may_alias)) word;

NPU_INLINE void fill(struct npu_descriptor *slot, uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out,
                     uint32_t mn, uint32_t k_param, uint32_t quant, uint32_t ticket)
{
    slot->op = op;
    slot->flags = flags;
    slot->in0_addr = in0;
    slot->in1_addr = in1;
    slot->out_addr = out;
    slot->tile_m = mn & 0xffff;
    slot->tile_n = mn >> 16;
    slot->tile_k = k_param & 0xffff;
    slot->quant = quant;
    slot->param0 = k_param >> 16;
    slot->param1 = 0;
    slot->status = NPU_STATUS_PENDING;
    slot->ticket = ticket;
}

/* Copy all words but the ticket. Unrolled: a loop would take a third more instructions. */
NPU_INLINE void copy(struct npu_descriptor *slot, const struct npu_descriptor *descriptor, uint32_t ticket)
{
    const word *from = (const word *)descriptor;
    word *to = (word *)slot;
#pragma GCC unroll 16
    for (unsigned i = 0; i < DESCRIPTOR_WORDS - 1; i++) {
        to[i] = from[i];
    }
    slot->ticket = ticket;
}

/* Wait for a free slot in the ring and return it. Reading HEAD costs a round trip, so it is read only when the ring
   appears full. */
NPU_INLINE struct npu_descriptor *ring_slot(uint32_t tail)
{
    while (__builtin_expect(tail == npu.limit, 0)) { /* unlikely: no taken branch on the fast path */
        npu.limit = npu_read(NPU_REG_QUEUE_HEAD) + npu.mask + 1;
    }
    return &npu_ring[tail & npu.mask];
}

/* Publish: the fence orders the stores to memory before the doorbell. The ticket is the new tail without its top bit. */
NPU_INLINE int32_t ring_doorbell(uint32_t tail, const bool tail_write)
{
    __asm__ volatile("fence w, o" ::: "memory");
    if (tail_write) {
        npu_write(NPU_REG_QUEUE_TAIL, tail);
    }
    npu_write(NPU_REG_DOORBELL, tail);
    npu.tail = tail;
    return (int32_t)(tail & TICKET_MASK);
}

NPU_INLINE int32_t enqueue(const struct npu_descriptor *descriptor)
{
    int32_t ticket;
    do {
        ticket = npu_enqcmd_t(descriptor, 0);
    } while (ticket == -NPU_EBUSY);
    return ticket;
}

NPU_INLINE int32_t loose(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                         uint32_t k_param, uint32_t quant, const bool tail_write)
{
    uint32_t tail = npu.tail;
    struct npu_descriptor *slot = ring_slot(tail);
    tail++;
    fill(slot, op, flags, in0, in1, out, mn, k_param, quant, tail & TICKET_MASK);
    return ring_doorbell(tail, tail_write);
}

NPU_INLINE int32_t prebuilt_loose(const struct npu_descriptor *descriptor, const bool tail_write)
{
    uint32_t tail = npu.tail;
    struct npu_descriptor *slot = ring_slot(tail);
    tail++;
    copy(slot, descriptor, tail & TICKET_MASK);
    return ring_doorbell(tail, tail_write);
}

/* Return the next buffer. The alignment of the ring allows wrapping by clearing one address bit. */
NPU_INLINE struct npu_descriptor *next_buffer(struct npu_descriptor *buffer)
{
    return (struct npu_descriptor *)((uintptr_t)(buffer + 1) & ~(uintptr_t)(NPU_BUFFERS * sizeof(*buffer)));
}

NPU_INLINE int32_t tight(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                         uint32_t k_param, uint32_t quant)
{
    struct npu_descriptor *buffer = npu.next;
    fill(buffer, op, flags, in0, in1, out, mn, k_param, quant, 0);
    int32_t ticket = enqueue(buffer);
    npu.next = next_buffer(buffer);
    return ticket;
}

HOT int32_t npu_submit_loose(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                             uint32_t k_param, uint32_t quant)
{
    return loose(op, flags, in0, in1, out, mn, k_param, quant, false);
}

HOT int32_t npu_submit_loose_tail(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                  uint32_t k_param, uint32_t quant)
{
    return loose(op, flags, in0, in1, out, mn, k_param, quant, true);
}

HOT int32_t npu_submit_tight(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                             uint32_t k_param, uint32_t quant)
{
    return tight(op, flags, in0, in1, out, mn, k_param, quant);
}

HOT int32_t npu_submit_prebuilt_loose(const struct npu_descriptor *descriptor)
{
    return prebuilt_loose(descriptor, false);
}

HOT int32_t npu_submit_prebuilt_loose_tail(const struct npu_descriptor *descriptor)
{
    return prebuilt_loose(descriptor, true);
}

HOT int32_t npu_submit_prebuilt_tight(const struct npu_descriptor *descriptor)
{
    return enqueue(descriptor);
}

/* -- batches, single attempts ------------------------------------------------------------------------------------ */

HOT int32_t npu_submit_stage_loose(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                   uint32_t k_param, uint32_t quant)
{
    uint32_t tail = npu.tail;
    struct npu_descriptor *slot = ring_slot(tail);
    tail++;
    fill(slot, op, flags, in0, in1, out, mn, k_param, quant, tail & TICKET_MASK);
    npu.tail = tail;
    return (int32_t)(tail & TICKET_MASK);
}

HOT void npu_submit_staged(void)
{
    if (!npu.tight) {
        (void)ring_doorbell(npu.tail, npu.tail_write);
    }
}

NPU_INLINE int32_t once_loose(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                              uint32_t k_param, uint32_t quant, const bool tail_write)
{
    if (npu.tail == npu.limit) {
        npu.limit = npu_read(NPU_REG_QUEUE_HEAD) + npu.mask + 1;
        if (npu.tail == npu.limit) {
            return -NPU_EBUSY;
        }
    }
    return loose(op, flags, in0, in1, out, mn, k_param, quant, tail_write);
}

HOT int32_t npu_submit_once_loose(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                  uint32_t k_param, uint32_t quant)
{
    return once_loose(op, flags, in0, in1, out, mn, k_param, quant, false);
}

HOT int32_t npu_submit_once_loose_tail(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out,
                                       uint32_t mn, uint32_t k_param, uint32_t quant)
{
    return once_loose(op, flags, in0, in1, out, mn, k_param, quant, true);
}

HOT int32_t npu_submit_once_tight(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                  uint32_t k_param, uint32_t quant)
{
    struct npu_descriptor *buffer = npu.next;
    fill(buffer, op, flags, in0, in1, out, mn, k_param, quant, 0);
    int32_t ticket = npu_enqcmd_t(buffer, 0);
    if (ticket != -NPU_EBUSY) {
        npu.next = next_buffer(buffer);
    }
    return ticket;
}

/* -- bounded waits ----------------------------------------------------------------------------------------------- */

/* Slow paths are tail calls and never inlined, so that the fast path saves no registers. */
#define COLD __attribute__((noinline, noclone, cold))

/* Wait for a free slot in the ring. A reset empties the ring and changes npu.tail: reload it afterwards. */
COLD static void wait_for_slot(void)
{
    struct npu_watch watch;
    npu_watch_begin(&watch);
    while (npu.tail == npu.limit && npu_watch(&watch) == 0) {
        npu.limit = npu_read(NPU_REG_QUEUE_HEAD) + npu.mask + 1;
    }
}

COLD static int32_t loose_slow_path(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                uint32_t k_param, uint32_t quant)
{
    wait_for_slot();
    return loose(op, flags, in0, in1, out, mn, k_param, quant, npu.tail_write);
}

COLD static int32_t prebuilt_slow_path(const struct npu_descriptor *descriptor)
{
    wait_for_slot();
    return prebuilt_loose(descriptor, npu.tail_write);
}

/* Retry ENQCMD_T until accepted. After a time-out without progress, retry only four times per time-out. */
COLD static int32_t enqueue_slow_path(const struct npu_descriptor *descriptor)
{
    struct npu_watch watch;
    int32_t ticket;
    npu_watch_begin(&watch);
    while ((ticket = npu_enqcmd_t(descriptor, 0)) == -NPU_EBUSY) {
        (void)npu_watch(&watch);
        if (watch.known && watch.looks != 0) {
            for (const uint32_t since = cycles(); cycles() - since < npu.timeout / 4;) {
            }
        }
    }
    return ticket;
}

HOT int32_t npu_submit_loose_watched(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                     uint32_t k_param, uint32_t quant)
{
    uint32_t tail = npu.tail;
    if (__builtin_expect(tail == npu.limit || npu.tail_write, 0)) {
        return loose_slow_path(op, flags, in0, in1, out, mn, k_param, quant);
    }
    struct npu_descriptor *slot = &npu_ring[tail & npu.mask];
    tail++;
    fill(slot, op, flags, in0, in1, out, mn, k_param, quant, tail & TICKET_MASK);
    return ring_doorbell(tail, false);
}

HOT int32_t npu_submit_prebuilt_loose_watched(const struct npu_descriptor *descriptor)
{
    uint32_t tail = npu.tail;
    if (__builtin_expect(tail == npu.limit || npu.tail_write, 0)) {
        return prebuilt_slow_path(descriptor);
    }
    struct npu_descriptor *slot = &npu_ring[tail & npu.mask];
    tail++;
    copy(slot, descriptor, tail & TICKET_MASK);
    return ring_doorbell(tail, false);
}

HOT int32_t npu_submit_tight_watched(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                     uint32_t k_param, uint32_t quant)
{
    struct npu_descriptor *buffer = npu.next;
    fill(buffer, op, flags, in0, in1, out, mn, k_param, quant, 0);
    int32_t ticket = npu_enqcmd_t(buffer, 0);
    npu.next = next_buffer(buffer);
    return __builtin_expect(ticket == -NPU_EBUSY, 0) ? enqueue_slow_path(buffer) : ticket;
}

HOT int32_t npu_submit_prebuilt_tight_watched(const struct npu_descriptor *descriptor)
{
    int32_t ticket = npu_enqcmd_t(descriptor, 0);
    return __builtin_expect(ticket == -NPU_EBUSY, 0) ? enqueue_slow_path(descriptor) : ticket;
}

HOT int32_t npu_submit_stage_watched(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                     uint32_t k_param, uint32_t quant)
{
    if (npu.tail == npu.limit) {
        wait_for_slot();
    }
    return npu_submit_stage_loose(op, flags, in0, in1, out, mn, k_param, quant);
}

/* The state of the wait persists across attempts. */
HOT int32_t npu_submit_once_watched(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                    uint32_t k_param, uint32_t quant)
{
    static struct npu_watch watch;
    int32_t ticket = npu.tight ? npu_submit_once_tight(op, flags, in0, in1, out, mn, k_param, quant)
                               : once_loose(op, flags, in0, in1, out, mn, k_param, quant, npu.tail_write);
    if (ticket != -NPU_EBUSY) {
        watch.limit = 0;
    } else if (watch.limit == 0) {
        npu_watch_begin(&watch);
    } else {
        (void)npu_watch(&watch);
    }
    return ticket;
}

HOT int32_t npu_send(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn, uint32_t k_param,
                     uint32_t quant)
{
    if (!npu.tight) {
        if (npu.timeout != 0 && npu.tail == npu.limit) {
            wait_for_slot();
        }
        return loose(op, flags, in0, in1, out, mn, k_param, quant, npu.tail_write);
    }
    return tight(op, flags, in0, in1, out, mn, k_param, quant);
}
