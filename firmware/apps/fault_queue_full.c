/* A full queue. Tight: each of the four policies of CTRL.FULL_POLICY. Loose: the ring fills and the driver waits.
   Nothing is lost: accepted commands complete well, refused ones are counted, and the tickets say which is which. */
#include "busy.h"
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_NEEDS_SPM(BUSY_SPM);

enum { MORE = 4, SPARE = 4, DEVICE_QUEUE = 64, TICKETS = 2 * NPU_RING_CAPACITY + 4096 };

static int32_t tickets[TICKETS] __attribute__((section(".noinit")));
static uint32_t count; /* of tickets */
static struct npu_descriptor busy, barrier, nop; /* in memory, for single attempts */

struct counters {
    uint32_t submitted, accepted, rejected, completed, errors;
};

static struct counters read_counters(void)
{
    return (struct counters){npu_counter(SUBMITTED), npu_counter(ACCEPTED), npu_counter(REJECTED), npu_completed(),
                             npu_counter(ERRORS)};
}

/* Cycles that one submission of a NOP costs the core. */
static uint32_t submission_cost(void)
{
    enum { TRIES = 16 };
    uint32_t start = cycles();
    for (uint32_t i = 0; i < TRIES; i++) {
        (void)npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_NOP), 0, 0, 0, 0, 0, 0, 0);
    }
    uint32_t cost = (cycles() - start) / TRIES + 1;
    npu_drain();
    return cost;
}

/* Long commands at the head, then a barrier, then NOPs that pile up behind it: how many take twice as long as filling
   the queue, and some to spare. */
static uint32_t busy_commands(void)
{
    return busy_count(2 * submission_cost() * (2 * npu.ring_size + DEVICE_QUEUE)) + SPARE;
}

static void keep(int32_t ticket)
{
    tickets[count++] = ticket;
}

static uint32_t status(void)
{
    return npu_read(NPU_REG_IRQ_STATUS);
}

/* Everything that was accepted completes well, and only that. */
static void account(const struct counters *before, uint32_t rejected)
{
    npu_drain();
    struct counters after = read_counters();
    uint32_t accepted = after.accepted - before->accepted;
    print("accepted %u, rejected %u, completed %u\n", (unsigned)accepted, (unsigned)(after.rejected - before->rejected),
          (unsigned)(after.completed - before->completed));
    expect_equal("accepted: the tickets we hold", accepted, count);
    expect_equal("completed", after.completed - before->completed, count);
    expect_equal("rejected", after.rejected - before->rejected, rejected);
    expect_equal("submitted = accepted + rejected", after.submitted - before->submitted, accepted + rejected);
    expect_equal("errors", after.errors - before->errors, 0);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < count; i++) {
        wrong += npu_result(tickets[i]) != 0;
        wrong += i > 0 && tickets[i] != tickets[i - 1] + 1;
    }
    expect_equal("tickets that are not done or out of sequence", wrong, 0);
}

/* -- tight ------------------------------------------------------------------------------------------------------- */

/* What attempts on the full queue did. Printing takes time in which the queue empties: it comes last. */
static struct {
    uint32_t depth, status_before, status_after, traps, took;
    int32_t returned[MORE];
    uint32_t mcause[MORE], mtval[MORE];
} seen;

static uint32_t depth(void)
{
    return NPU_CSR_READ(NPU_CSR_PERF_QUEUE_DEPTH_LO);
}

/* Single attempts until the queue is full; none of them is refused. */
static void fill(uint32_t needed)
{
    while (depth() < npu.ring_size && count < TICKETS - MORE) {
        keep(npu_enqcmd_t(count < needed ? &busy : count == needed ? &barrier : &nop, 0));
    }
}

/* Fill the queue, then try MORE times under `policy`. A long command that ends makes room, so fill again when one has
   just ended: the next takes longer than the attempts. */
static struct counters attempt(uint32_t needed, uint32_t policy)
{
    npu_full_policy(policy);
    count = 0;
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    struct counters before = read_counters();
    fill(needed);
    struct npu_watch watch;
    npu_watch_begin(&watch);
    while (depth() == npu.ring_size && npu_may_wait(&watch)) {
    }
    fill(needed);
    seen.depth = depth();
    seen.status_before = NPU_CSR_READ(NPU_CSR_IRQ_STATUS);
    trap_record_start();
    uint32_t start = cycles();
    for (uint32_t i = 0; i < MORE; i++) {
        seen.returned[i] = npu_enqcmd_t(&nop, 0);
        seen.mcause[i] = trap_record.cause;
        seen.mtval[i] = trap_record.mtval;
    }
    seen.took = cycles() - start;
    seen.status_after = NPU_CSR_READ(NPU_CSR_IRQ_STATUS);
    seen.traps = trap_record.count;
    trap_record_stop();
    expect_equal("queue depth", seen.depth, npu.ring_size);
    expect_equal("IRQ_STATUS before", seen.status_before, 0);
    return before;
}

static void expect_returned(int32_t wanted)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < MORE; i++) {
        wrong += seen.returned[i] != wanted;
    }
    print("attempts on the full queue return %d\n", (int)seen.returned[0]);
    expect_equal("attempts that returned something else", wrong, 0);
}

static void policy_retry(uint32_t needed)
{
    print("-- policy retry\n");
    struct counters before = attempt(needed, NPU_FULL_RETRY);
    expect_returned(-NPU_EBUSY);
    expect_equal("traps", seen.traps, 0);
    expect_equal("IRQ_STATUS while it is full", seen.status_after, 0);
    account(&before, MORE);
    expect_equal("IRQ_STATUS later", status(), NPU_IRQ_SPACE_MASK);
}

static void policy_stall(uint32_t needed)
{
    print("-- policy stall\n");
    npu_watchdog(true);
    struct counters before = attempt(needed, NPU_FULL_STALL);
    npu_watchdog(false);
    uint32_t refused = 0;
    for (uint32_t i = 0; i < MORE; i++) {
        refused += seen.returned[i] <= 0;
        keep(seen.returned[i]);
    }
    print("attempts on the full queue return %d and so on, after %u cycles\n", (int)seen.returned[0],
          (unsigned)seen.took);
    expect_equal("attempts that were refused", refused, 0);
    expect_equal("traps", seen.traps, 0);
    account(&before, 0);
    expect_equal("IRQ_STATUS later", status(), NPU_IRQ_SPACE_MASK);
}

static void policy_trap(uint32_t needed)
{
    print("-- policy trap\n");
    struct counters before = attempt(needed, NPU_FULL_TRAP);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < MORE; i++) {
        wrong += seen.mcause[i] != NPU_TRAP_QUEUE_FULL || seen.mtval[i] != (uint32_t)(uintptr_t)&nop;
    }
    print("attempts on the full queue trap: mcause %u, mtval 0x%08x\n", (unsigned)seen.mcause[0],
          (unsigned)seen.mtval[0]);
    expect_equal("traps", seen.traps, MORE);
    expect_equal("traps with another cause or mtval", wrong, 0);
    account(&before, MORE);
}

static void policy_drop(uint32_t needed)
{
    print("-- policy drop\n");
    struct counters before = attempt(needed, NPU_FULL_DROP);
    expect_returned(0);
    expect_equal("traps", seen.traps, 0);
    expect_equal("IRQ_STATUS while it is full", seen.status_after, NPU_IRQ_DROPPED_MASK);
    account(&before, MORE);
    expect_equal("IRQ_STATUS.DROPPED later", status() & NPU_IRQ_DROPPED_MASK, NPU_IRQ_DROPPED_MASK);
}

/* -- loose ------------------------------------------------------------------------------------------------------- */

static void ring_full(uint32_t needed)
{
    print("-- ring of %u\n", (unsigned)npu.ring_size);
    count = 0;
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    struct counters before = read_counters();
    uint32_t enough = needed + 2 * npu.ring_size + DEVICE_QUEUE, full = 0, waited = 0;
    while (full < MORE && count < enough) {
        if (npu.tail == npu.limit) { /* the driver is going to look at HEAD */
            full += npu.tail - npu_read(NPU_REG_QUEUE_HEAD) == npu.ring_size;
        }
        uint32_t start = cycles();
        keep(npu_submit_prebuilt(count < needed ? &busy : count == needed ? &barrier : &nop));
        uint32_t took = cycles() - start;
        waited = took > waited ? took : waited;
    }
    print("the longest submission took %u cycles\n", (unsigned)waited);
    expect_equal("found the ring full", full, MORE);
    account(&before, 0);
    expect_equal("IRQ_STATUS: RING_OVERFLOW", status() & NPU_IRQ_RING_OVERFLOW_MASK, 0);
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    busy_descriptor(&busy);
    barrier.op = NPU_DESC(OPCODE, NPU_OPCODE_BARRIER);
    barrier.flags = NPU_DESC(FUNCTION, NPU_SCOPE_GLOBAL);
    print("mode %s, queue of %u\n", npu.tight ? "tight" : "loose", (unsigned)npu.ring_size);
    uint32_t needed = busy_commands();
    if (npu.tight) {
        policy_retry(needed);
        policy_stall(needed);
        policy_trap(needed);
        policy_drop(needed);
        npu_full_policy(NPU_FULL_RETRY);
    } else {
        ring_full(needed);
    }
    expect_equal("a command afterwards",
                 (uint32_t)npu_wait(npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_NOP), 0, 0, 0, 0, 0, 0, 0)), 0);
    return expect_result("fault_queue_full");
}

NPU_NOISE("after # cycles");
NPU_NOISE("took # cycles");
