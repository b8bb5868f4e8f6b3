/* Completion by interrupt: one handler call for each paced command, none lost in a burst, none without the flag. */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG_IN(0, n, 64, 0, NPU_COUNT_MAX) /* commands of each part */

enum { N_MAX = 1024 };

static volatile int32_t tickets[N_MAX];
static volatile uint32_t submitted; /* tickets[0..submitted) wait for completion */
static volatile uint32_t complete; /* of these, known to be complete: they complete in order */
static volatile uint32_t calls; /* of the handler */
static volatile uint32_t spurious; /* calls that found nothing new */
static volatile uint32_t failed; /* completions with an error */

/* The scan of the handler: tickets of one stream retire in order. */
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

/* Nothing is pending: the PLIC keeps a request whose line has fallen, so let that one come before the count starts. */
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

/* Sleep until all that was submitted is known to be complete. */
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

/* The handler runs in the middle of submissions. A ticket is listed only after npu_submit has returned, so a call that
   comes before finds nothing: not an error, and the scan after the burst finds it. */
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
    (void)npu_read(NPU_REG_IRQ_MASK); /* the posted write has arrived */
    interrupts_on();
    submit(NPU_DESC(IRQ, 1));
    npu_drain();
    expect_equal("masked: handler calls", calls, 0);
    expect_equal("masked: IRQ_STATUS", npu_read(NPU_REG_IRQ_STATUS), NPU_IRQ_DONE_MASK);
    npu_write(NPU_REG_IRQ_MASK, NPU_IRQ_DONE_MASK | NPU_IRQ_ERROR_MASK); /* the line is a level: it rises now */
    (void)npu_read(NPU_REG_IRQ_MASK);
    for (uint32_t i = 0; i < 64 && calls == 0; i++) { /* through the PLIC it takes a while */
    }
    interrupts_off();
    expect_equal("unmasked: handler calls", calls, 1);
    expect_equal("unmasked: completions seen", complete, 1);
}

static void with_error(void)
{
    begin();
    (void)npu_submit(NPU_DESC(OPCODE, NPU_DESC_OPCODE_MASK), 0, 0, 0, 0, 0, 0, 0); /* no such opcode, no irq flag */
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
