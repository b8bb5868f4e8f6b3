/* Queue under load. Open loop: commands at arrival times from the host (npu_arrivals). Closed loop: a fixed number of
   commands in flight. Options: streams, priorities, background transfers that take bandwidth, an interrupt for each
   completion, back-off on a full queue. The policy of a full queue is set by the platform
   (npu.queue.full_policy). */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG_IN(0, n, 500, 0, NPU_COUNT_MAX) /* closed loop: commands */
NPU_ARG_IN(1, window, 8, 0, NPU_COUNT_MAX) /* closed loop: maximum commands in flight, 0 no limit */
NPU_ARG(2, tile, 32) /* rows, columns and depth of a command, at most 64 */
NPU_ARG(3, streams, 1) /* number of streams, used round robin, at most 15 */
NPU_ARG(4, priorities, 1) /* number of priorities, used round robin, at most 16 */
NPU_ARG(5, background, 0) /* bytes of a transfer before each command, below 65536, not measured */
NPU_ARG(6, interrupts, 0) /* 1: an interrupt for each completion */
NPU_ARG_IN(7, backoff, 0, 0, NPU_COUNT_MAX) /* cycles between a rejected attempt and the next attempt */

enum { CAPACITY = 8192, TILES = 8, TILE_MAX = 64, TILE_BYTES = TILE_MAX * TILE_MAX, BACKGROUND_MAX = 65536 };

NPU_NEEDS_SPM(0x39000); /* TILES operands and results, an identity matrix, the target of transfers */

/* The host writes count and distances (pyv_npu/observe/latency/arrivals.py). */
struct arrivals {
    uint32_t epoch, count, distance[CAPACITY];
};
struct arrivals npu_arrivals __attribute__((section(".noinit"))); /* start-up must not clear what the host wrote */

static uint8_t memory[BACKGROUND_MAX] __attribute__((section(".noinit"), aligned(64)));
static uint32_t operands, results, identity, target; /* scratchpad addresses */
static uint32_t backoff;
static volatile uint32_t interrupts, traps;

static void wait_until(uint32_t cycle)
{
    while ((int32_t)(cycles() - cycle) < 0) {
    }
}

/* Handle policy trap: the instruction is executed again when the handler returns. */
static void on_full_queue(struct trap_frame *frame)
{
    (void)frame;
    traps++;
    wait_until(cycles() + backoff);
}

static void on_completion(void)
{
    interrupts++;
}

/* Precomputed arguments, so that the loop has no divisions and no calls between two submissions. */
static uint32_t mn, k, background, streams, priorities, irq;
static uint32_t next_tile, next_stream, next_priority;

static uint32_t round_robin(uint32_t *next, uint32_t count)
{
    uint32_t current = *next;
    *next = current + 1 == count ? 0 : current + 1;
    return current;
}

/* Submit a command and its background transfer. Return whether the command was accepted. */
static bool submit_command(void)
{
    const uint32_t int8 = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8);
    if (background != 0) {
        (void)npu_send(NPU_DESC(OPCODE, NPU_OPCODE_LOAD), NPU_DESC(STREAM, 15), (uint32_t)(uintptr_t)memory, 0, target,
                       NPU_MN(1, 0), NPU_K(background, 0), int8);
    }
    const uint32_t offset = round_robin(&next_tile, TILES) * TILE_BYTES;
    const uint32_t flags = NPU_DESC(STREAM, round_robin(&next_stream, streams)) |
                           NPU_DESC(PRIO, round_robin(&next_priority, priorities)) | NPU_DESC(IRQ, irq);
    const uint32_t types = int8 | NPU_DESC(TYPE_IN1, NPU_TYPE_INT8) | NPU_DESC(TYPE_OUT, NPU_TYPE_INT32);
    int32_t ticket;
    while ((ticket = npu_submit_once(NPU_DESC(OPCODE, NPU_OPCODE_GEMM_T), flags, operands + offset, identity,
                                     results + 4 * offset, mn, k, types)) == -NPU_EBUSY) {
        wait_until(cycles() + backoff);
    }
    return ticket > 0;
}

static uint32_t open_loop(void)
{
    uint32_t accepted = 0;
    const uint32_t epoch = cycles();
    npu_arrivals.epoch = epoch;
    for (uint32_t i = 0; i < npu_arrivals.count; i++) {
        wait_until(epoch + npu_arrivals.distance[i]);
        accepted += submit_command();
    }
    return accepted;
}

static uint32_t closed_loop(void)
{
    const uint32_t n = arg_n(), window = arg_window();
    uint32_t accepted = 0, before = npu_completed(), transfers = background != 0 ? 2 : 1;
    struct npu_watch watch;
    for (uint32_t i = 0; i < n; i++) {
        if (npu.timeout != 0) {
            npu_watch_begin(&watch);
        }
        while (window != 0 && transfers * accepted - (npu_completed() - before) >= transfers * window) {
            if (npu.timeout != 0 && npu_watch(&watch) != 0) {
                return accepted;
            }
        }
        accepted += submit_command();
    }
    return accepted;
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    if (arg_tile() == 0 || arg_tile() > TILE_MAX || arg_streams() == 0 || arg_streams() > 15 || arg_priorities() == 0 ||
        arg_priorities() > 16 || arg_background() > BACKGROUND_MAX - 1 || arg_interrupts() > 1) {
        print("tile up to 64, streams 1 to 15, priorities 1 to 16, background below 65536, interrupts 0 or 1\n");
        return 2;
    }
    operands = boot->spm_base;
    results = operands + TILES * TILE_BYTES;
    identity = results + 4 * TILES * TILE_BYTES;
    target = identity + TILE_BYTES;
    backoff = arg_backoff();
    background = arg_background();
    streams = arg_streams();
    priorities = arg_priorities();
    irq = arg_interrupts();
    mn = NPU_MN(arg_tile(), arg_tile());
    k = NPU_K(arg_tile(), 0);
    (void)trap_on_exception(NPU_TRAP_QUEUE_FULL, on_full_queue);
    if (arg_interrupts() != 0) {
        npu_irq_enable(NPU_IRQ_DONE_MASK, on_completion);
        interrupts_on();
    }
    uint32_t completed = npu_completed(), errors = npu_counter(ERRORS);
    bool open = npu_arrivals.count != 0;
    uint32_t accepted = open ? open_loop() : closed_loop();
    npu_drain();
    interrupts_off();
    uint32_t transfers = npu_completed() - completed - accepted;
    print("%s: %u of %u accepted, %u background transfers, %u traps, %u interrupts\n", open ? "open loop" : "closed loop",
          (unsigned)accepted, (unsigned)(open ? npu_arrivals.count : arg_n()), (unsigned)transfers, (unsigned)traps,
          (unsigned)interrupts);
    expect_equal("errors", npu_counter(ERRORS) - errors, 0);
    return expect_result("submit_load");
}

NPU_NOISE("# background transfers, # traps, # interrupts");
