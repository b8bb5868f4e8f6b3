/* Recovery: bounded waits, the checks on expiry, and the recovery log (docs/reliability.md). Unused without
   driver.timeout. */
#include "npu_driver.h"
#include "runtime.h"

enum { MAX_CHECKS = 8 /* checks without progress before a device reset; the interval doubles each time */ };

struct npu_recoveries npu_recoveries;

static const char *const recovery_text[] = {
    [NPU_RECOVERY_DOORBELL] = "doorbell lost, rung again",
    [NPU_RECOVERY_INTERRUPT] = "interrupt lost, completions polled",
    [NPU_RECOVERY_LATE] = "no progress, waiting on",
    [NPU_RECOVERY_REPEATED] = "commands failed, submitted again",
    [NPU_RECOVERY_RESET] = "no progress, device reset",
};

void npu_recovered(uint32_t what, uint32_t since, uint32_t detail)
{
    const uint32_t now = cycles(), index = npu_recoveries.count++;
    if (index < NPU_RECOVERIES) {
        npu_recoveries.log[index] = (struct npu_recovery){what, since, now, detail};
        print("npu: %s, %u cycles after the last progress\n", recovery_text[what], (unsigned)(now - since));
    }
}

/* Return a sum that changes whenever the device makes progress. */
static uint32_t progress(void)
{
    uint32_t head = npu.tight ? 0 : npu_read(NPU_REG_QUEUE_HEAD);
    return head + npu_counter(ACCEPTED) + npu_completed() + npu_counter(NOC_BYTES);
}

/* The reference value of progress is read only after half the time-out, so that short waits stay cheap. */
void npu_watch_begin(struct npu_watch *watch)
{
    watch->began = watch->since = cycles();
    watch->limit = npu.timeout / 2 + 1;
    watch->known = false;
}

void npu_restart(void)
{
    npu_write(NPU_REG_CTRL, npu_read(NPU_REG_CTRL) | NPU_CTRL_RESET_MASK);
    (void)npu_open(npu.tight ? NPU_MODE_TIGHT : NPU_MODE_LOOSE);
}

static int32_t check_progress(struct npu_watch *watch)
{
    const uint32_t now = progress();
    if (!watch->known || now != watch->progress) {
        if (watch->known) {
            watch->began = watch->since;
        }
        watch->known = true;
        watch->progress = now;
        watch->since = cycles();
        watch->looks = 0;
        if (watch->limit > npu.timeout) { /* cap the interval */
            watch->limit = npu.timeout;
        }
        return 0;
    }
    watch->since = cycles();
    const uint32_t device_tail = npu.tight ? npu.tail : npu_read(NPU_REG_QUEUE_TAIL);
    if (device_tail != npu.tail) {
        npu_recovered(NPU_RECOVERY_DOORBELL, watch->began, npu.tail - device_tail);
        npu_write(NPU_REG_DOORBELL, npu.tail);
        return 0;
    }
    if (watch->looks++ == 0) {
        npu_recovered(NPU_RECOVERY_LATE, watch->began, npu_counter(ACCEPTED) - npu_completed());
    }
    if (watch->looks > MAX_CHECKS) {
        npu_recovered(NPU_RECOVERY_RESET, watch->began, npu_counter(ACCEPTED) - npu_completed());
        npu_restart();
        npu_watch_begin(watch);
        return -NPU_ETIMEDOUT;
    }
    watch->limit *= 2;
    return 0;
}

int32_t npu_watch(struct npu_watch *watch)
{
    return cycles() - watch->since < watch->limit ? 0 : check_progress(watch);
}

bool npu_repeat(uint32_t repeats, uint32_t since, uint32_t failed)
{
    if (npu.timeout == 0 || failed == 0 || repeats >= NPU_REPEATS) {
        return false;
    }
    npu_recovered(NPU_RECOVERY_REPEATED, since, failed);
    return true;
}
