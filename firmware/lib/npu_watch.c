/* Recovery: waits that end, what they look for, and the record of what was found (docs/reliability.md). A driver without
   a time-out (driver.timeout) calls nothing of this. */
#include "npu_driver.h"
#include "runtime.h"

enum { LOOKS = 8 /* without progress, each after twice the time of the one before: then the device is reset */ };

struct npu_recoveries npu_recoveries;

static const char *const text[] = {
    [NPU_RECOVERY_DOORBELL] = "doorbell lost, rung again",
    [NPU_RECOVERY_INTERRUPT] = "interrupt lost, completions polled",
    [NPU_RECOVERY_LATE] = "no progress, waiting on",
    [NPU_RECOVERY_REPEATED] = "commands failed, submitted again",
    [NPU_RECOVERY_RESET] = "no progress, device reset",
};

void npu_recovered(uint32_t what, uint32_t since, uint32_t detail)
{
    const uint32_t found = cycles(), index = npu_recoveries.count++;
    if (index < NPU_RECOVERIES) {
        npu_recoveries.log[index] = (struct npu_recovery){what, since, found, detail};
        print("npu: %s, %u cycles after the last progress\n", text[what], (unsigned)(found - since));
    }
}

/* Anything that changes while the device works. */
static uint32_t progress(void)
{
    uint32_t head = npu.tight ? 0 : npu_read(NPU_REG_QUEUE_HEAD);
    return head + npu_counter(ACCEPTED) + npu_completed() + npu_counter(NOC_BYTES);
}

/* Costs a wait that ends soon next to nothing: what progress is measured against is read at half the time. */
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

static int32_t look(struct npu_watch *watch)
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
        if (watch->limit > npu.timeout) { /* a wait that has become long stays so, but does not add up */
            watch->limit = npu.timeout;
        }
        return 0;
    }
    watch->since = cycles();
    const uint32_t arrived = npu.tight ? npu.tail : npu_read(NPU_REG_QUEUE_TAIL);
    if (arrived != npu.tail) {
        npu_recovered(NPU_RECOVERY_DOORBELL, watch->began, npu.tail - arrived);
        npu_write(NPU_REG_DOORBELL, npu.tail);
        return 0;
    }
    if (watch->looks++ == 0) {
        npu_recovered(NPU_RECOVERY_LATE, watch->began, npu_counter(ACCEPTED) - npu_completed());
    }
    if (watch->looks > LOOKS) {
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
    return cycles() - watch->since < watch->limit ? 0 : look(watch);
}

bool npu_repeat(uint32_t repeats, uint32_t since, uint32_t failed)
{
    if (npu.timeout == 0 || failed == 0 || repeats >= NPU_REPEATS) {
        return false;
    }
    npu_recovered(NPU_RECOVERY_REPEATED, since, failed);
    return true;
}
