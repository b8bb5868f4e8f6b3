/* Full queue. Tight mode: each policy of CTRL.FULL_POLICY. Loose mode: the ring is full and the driver waits.
   Accepted commands complete without errors, rejected ones are counted, and the return values tell them apart. */
#include "busy.h"
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_NEEDS_SPM(BUSY_SPM);

enum { ATTEMPTS = 4, SPARE = 4, DEVICE_QUEUE = 64, TICKETS = 2 * NPU_RING_CAPACITY + 4096 };

static int32_t tickets[TICKETS] __attribute__((section(".noinit")));
static uint32_t count; /* entries of tickets[] */
static struct npu_descriptor busy, barrier, nop; /* descriptors for single attempts */

struct counters {
    uint32_t submitted, accepted, rejected, completed, errors;
};

static struct counters read_counters(void)
{
    return (struct counters){npu_counter(SUBMITTED), npu_counter(ACCEPTED), npu_counter(REJECTED), npu_completed(),
                             npu_counter(ERRORS)};
}

/* Measure the cycles of one submission on the core. */
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

/* The queue is filled by long commands, a barrier, and NOPs that wait for it. Return the number of long commands that
   take twice as long as filling the queue, plus a reserve. */
static uint32_t busy_commands(void)
{
    return busy_count(2 * submission_cost() * (2 * npu.ring_size + DEVICE_QUEUE)) + SPARE;
}

static void record_ticket(int32_t ticket)
{
    tickets[count++] = ticket;
}

static uint32_t status(void)
{
    return npu_read(NPU_REG_IRQ_STATUS);
}

/* Check that exactly the accepted commands complete, without errors. */
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

/* Results of the attempts on the full queue, printed afterwards: the queue drains while the program prints. */
static struct {
    uint32_t depth, status_before, status_after, traps, duration;
    int32_t returned[ATTEMPTS];
    uint32_t mcause[ATTEMPTS], mtval[ATTEMPTS];
} outcome;

static uint32_t depth(void)
{
    return NPU_CSR_READ(NPU_CSR_PERF_QUEUE_DEPTH_LO);
}

/* Submit by single attempts until the queue is full. None is rejected. */
static void fill(uint32_t busy_total)
{
    while (depth() < npu.ring_size && count < TICKETS - ATTEMPTS) {
        record_ticket(npu_enqcmd_t(count < busy_total ? &busy : count == busy_total ? &barrier : &nop, 0));
    }
}

/* Fill the queue, then submit ATTEMPTS times under `policy`. A completed long command frees an entry. So refill the
   queue right after a completion: the next long command takes longer than the attempts. */
static struct counters attempt(uint32_t busy_total, uint32_t policy)
{
    npu_full_policy(policy);
    count = 0;
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    struct counters before = read_counters();
    fill(busy_total);
    struct npu_watch watch;
    npu_watch_begin(&watch);
    while (depth() == npu.ring_size && npu_may_wait(&watch)) {
    }
    fill(busy_total);
    outcome.depth = depth();
    outcome.status_before = NPU_CSR_READ(NPU_CSR_IRQ_STATUS);
    trap_record_start();
    uint32_t start = cycles();
    for (uint32_t i = 0; i < ATTEMPTS; i++) {
        outcome.returned[i] = npu_enqcmd_t(&nop, 0);
        outcome.mcause[i] = trap_record.cause;
        outcome.mtval[i] = trap_record.mtval;
    }
    outcome.duration = cycles() - start;
    outcome.status_after = NPU_CSR_READ(NPU_CSR_IRQ_STATUS);
    outcome.traps = trap_record.count;
    trap_record_stop();
    expect_equal("queue depth", outcome.depth, npu.ring_size);
    expect_equal("IRQ_STATUS before", outcome.status_before, 0);
    return before;
}

static void expect_returned(int32_t expected)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < ATTEMPTS; i++) {
        wrong += outcome.returned[i] != expected;
    }
    print("attempts on the full queue return %d\n", (int)outcome.returned[0]);
    expect_equal("attempts that returned something else", wrong, 0);
}

static void policy_retry(uint32_t busy_total)
{
    print("-- policy retry\n");
    struct counters before = attempt(busy_total, NPU_FULL_RETRY);
    expect_returned(-NPU_EBUSY);
    expect_equal("traps", outcome.traps, 0);
    expect_equal("IRQ_STATUS while it is full", outcome.status_after, 0);
    account(&before, ATTEMPTS);
    expect_equal("IRQ_STATUS later", status(), NPU_IRQ_SPACE_MASK);
}

static void policy_stall(uint32_t busy_total)
{
    print("-- policy stall\n");
    npu_watchdog(true);
    struct counters before = attempt(busy_total, NPU_FULL_STALL);
    npu_watchdog(false);
    uint32_t refused = 0;
    for (uint32_t i = 0; i < ATTEMPTS; i++) {
        refused += outcome.returned[i] <= 0;
        record_ticket(outcome.returned[i]);
    }
    print("attempts on the full queue return %d and so on, after %u cycles\n", (int)outcome.returned[0],
          (unsigned)outcome.duration);
    expect_equal("attempts that were refused", refused, 0);
    expect_equal("traps", outcome.traps, 0);
    account(&before, 0);
    expect_equal("IRQ_STATUS later", status(), NPU_IRQ_SPACE_MASK);
}

static void policy_trap(uint32_t busy_total)
{
    print("-- policy trap\n");
    struct counters before = attempt(busy_total, NPU_FULL_TRAP);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < ATTEMPTS; i++) {
        wrong += outcome.mcause[i] != NPU_TRAP_QUEUE_FULL || outcome.mtval[i] != (uint32_t)(uintptr_t)&nop;
    }
    print("attempts on the full queue trap: mcause %u, mtval 0x%08x\n", (unsigned)outcome.mcause[0],
          (unsigned)outcome.mtval[0]);
    expect_equal("traps", outcome.traps, ATTEMPTS);
    expect_equal("traps with another cause or mtval", wrong, 0);
    account(&before, ATTEMPTS);
}

static void policy_drop(uint32_t busy_total)
{
    print("-- policy drop\n");
    struct counters before = attempt(busy_total, NPU_FULL_DROP);
    expect_returned(0);
    expect_equal("traps", outcome.traps, 0);
    expect_equal("IRQ_STATUS while it is full", outcome.status_after, NPU_IRQ_DROPPED_MASK);
    account(&before, ATTEMPTS);
    expect_equal("IRQ_STATUS.DROPPED later", status() & NPU_IRQ_DROPPED_MASK, NPU_IRQ_DROPPED_MASK);
}

/* -- loose ------------------------------------------------------------------------------------------------------- */

static void ring_full(uint32_t busy_total)
{
    print("-- ring of %u\n", (unsigned)npu.ring_size);
    count = 0;
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    struct counters before = read_counters();
    uint32_t limit = busy_total + 2 * npu.ring_size + DEVICE_QUEUE, full = 0, longest = 0;
    while (full < ATTEMPTS && count < limit) {
        if (npu.tail == npu.limit) { /* the driver will read HEAD */
            full += npu.tail - npu_read(NPU_REG_QUEUE_HEAD) == npu.ring_size;
        }
        uint32_t start = cycles();
        record_ticket(npu_submit_prebuilt(count < busy_total ? &busy : count == busy_total ? &barrier : &nop));
        uint32_t duration = cycles() - start;
        longest = duration > longest ? duration : longest;
    }
    print("the longest submission took %u cycles\n", (unsigned)longest);
    expect_equal("found the ring full", full, ATTEMPTS);
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
    uint32_t busy_total = busy_commands();
    if (npu.tight) {
        policy_retry(busy_total);
        policy_stall(busy_total);
        policy_trap(busy_total);
        policy_drop(busy_total);
        npu_full_policy(NPU_FULL_RETRY);
    } else {
        ring_full(busy_total);
    }
    expect_equal("a command afterwards",
                 (uint32_t)npu_wait(npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_NOP), 0, 0, 0, 0, 0, 0, 0)), 0);
    return expect_result("fault_queue_full");
}

NPU_NOISE("after # cycles");
NPU_NOISE("took # cycles");
