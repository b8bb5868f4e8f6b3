/* Completion interrupts: one call per paced command, no lost completion in a burst, no call without the flag. */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG_IN(0, n, 64, 0, NPU_COUNT_MAX) /* commands of each part */

enum { N_MAX = 1024 };

static volatile int32_t tickets[N_MAX];
static volatile uint32_t submitted; /* number of entries in tickets[] */
static volatile uint32_t complete; /* entries seen complete; they complete in order */
static volatile uint32_t calls; /* handler calls */
static volatile uint32_t spurious; /* handler calls without a new completion */
static volatile uint32_t failed; /* completions with an error */

/* Scan tickets in the handler. Tickets of one stream retire in order. */
static void scan(void)
{
    uint32_t before = complete;
    while (complete < submitted) {
        int32_t result = npu_result(tickets[complete]);
        if (result == -NPU_EBUSY || result == -NPU_ENOENT) {
            break;
        }
        failed += result != 0;
        complete++;
    }
    calls++;
    spurious += complete == before;
}

/* Reset the counters with no interrupt pending: the PLIC latches a request even if the line falls, so take it first. */
static void begin(void)
{
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    interrupts_on();
    (void)npu_read(NPU_REG_IRQ_STATUS);
    interrupts_off();
    submitted = complete = calls = spurious = failed = 0;
}

static void submit(uint32_t flags)
{
    int32_t ticket = npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_NOP), flags, 0, 0, 0, 0, 0, 0);
    tickets[submitted] = ticket;
    submitted++;
}

/* Sleep until all submitted commands are complete. */
static void sleep_until_complete(void)
{
    while (complete < submitted && npu_sleep() == 0) {
    }
}

static void paced(uint32_t n)
{
    begin();
    for (uint32_t i = 0; i < n; i++) {
        submit(NPU_DESC(IRQ, 1));
        sleep_until_complete();
    }
    expect_equal("paced: completions seen", complete, n);
    expect_equal("paced: handler calls", calls, n);
    expect_equal("paced: spurious calls", spurious, 0);
    expect_equal("paced: errors", failed, 0);
}

/* The handler may run during a submission. A ticket is recorded only after npu_submit returns, so a handler call before
   that finds no new completion. This is not an error: the scan after the burst covers it. */
static void burst(uint32_t n)
{
    begin();
    interrupts_on();
    for (uint32_t i = 0; i < n; i++) {
        submit(NPU_DESC(IRQ, 1));
    }
    interrupts_off();
    npu_drain();
    scan();
    expect_equal("burst: completions seen", complete, n);
    expect_range("burst: handler calls", calls, 1, n + 1);
    expect_equal("burst: errors", failed, 0);
    print("burst: %u calls found nothing new\n", (unsigned)spurious);
}

static void without_flag(uint32_t n)
{
    begin();
    interrupts_on();
    for (uint32_t i = 0; i < n; i++) {
        submit(0);
    }
    npu_drain();
    interrupts_off();
    expect_equal("without flag: handler calls", calls, 0);
    expect_equal("without flag: IRQ_STATUS", npu_read(NPU_REG_IRQ_STATUS), 0);
}

static void masked(void)
{
    begin();
    npu_write(NPU_REG_IRQ_MASK, 0);
    (void)npu_read(NPU_REG_IRQ_MASK); /* flush the posted write */
    interrupts_on();
    submit(NPU_DESC(IRQ, 1));
    npu_drain();
    expect_equal("masked: handler calls", calls, 0);
    expect_equal("masked: IRQ_STATUS", npu_read(NPU_REG_IRQ_STATUS), NPU_IRQ_DONE_MASK);
    npu_write(NPU_REG_IRQ_MASK, NPU_IRQ_DONE_MASK | NPU_IRQ_ERROR_MASK); /* level-triggered: the line rises now */
    (void)npu_read(NPU_REG_IRQ_MASK);
    for (uint32_t i = 0; i < 64 && calls == 0; i++) { /* the PLIC adds latency */
    }
    interrupts_off();
    expect_equal("unmasked: handler calls", calls, 1);
    expect_equal("unmasked: completions seen", complete, 1);
}

static void with_error(void)
{
    begin();
    (void)npu_submit(NPU_DESC(OPCODE, NPU_DESC_OPCODE_MASK), 0, 0, 0, 0, 0, 0, 0); /* invalid opcode, no IRQ flag */
    for (uint32_t i = 0; i < 1000 && calls == 0; i++) {
        interrupts_on();
        interrupts_off();
    }
    npu_drain();
    expect_equal("error: handler calls", calls, 1);
    expect_equal("error: ERROR_CODE", npu_read(NPU_REG_ERROR_CODE), NPU_E_OPCODE);
}

int main(void)
{
    uint32_t n = arg_n();
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    if (n == 0 || n > N_MAX) {
        print("n must be 1..%u\n", (unsigned)N_MAX);
        return 2;
    }
    print("mode %s, %u commands\n", npu.tight ? "tight" : "loose", (unsigned)n);
    npu_irq_enable(NPU_IRQ_DONE_MASK | NPU_IRQ_ERROR_MASK, scan);
    paced(n);
    burst(n);
    without_flag(n);
    masked();
    with_error();
    npu_irq_disable();
    return expect_result("irq_completion");
}

NPU_NOISE("burst: # calls");
