/* Slow path of the driver: set-up, completion and status. */
#include "npu_driver.h"

#include "runtime.h"
#include "trap.h"

NPU_ARG(15, tail_write, 0) /* 1: write QUEUE_TAIL before each doorbell */

enum { HISTORY = 65536 /* completed tickets whose state the device retains */ };

NPU_ARG(13, timeout, 0) /* cycles without progress before a wait starts recovery; 0: waits are unbounded */

static void select_functions(bool tight)
{
    const bool tail_write = arg_tail_write() != 0;
    npu.tight = tight;
    npu.tail_write = tail_write;
    npu.timeout = arg_timeout();
    if (npu.timeout != 0) {
        npu.submit = tight ? npu_submit_tight_watched : npu_submit_loose_watched;
        npu.submit_prebuilt = tight ? npu_submit_prebuilt_tight_watched : npu_submit_prebuilt_loose_watched;
        npu.stage = tight ? npu_submit_tight_watched : npu_submit_stage_watched;
        npu.submit_once = npu_submit_once_watched;
    } else if (tight) {
        npu.submit = npu_submit_tight;
        npu.submit_prebuilt = npu_submit_prebuilt_tight;
        npu.stage = npu_submit_tight;
        npu.submit_once = npu_submit_once_tight;
    } else {
        npu.stage = npu_submit_stage_loose;
        npu.submit_once = tail_write ? npu_submit_once_loose_tail : npu_submit_once_loose;
        npu.submit = tail_write ? npu_submit_loose_tail : npu_submit_loose;
        npu.submit_prebuilt = tail_write ? npu_submit_prebuilt_loose_tail : npu_submit_prebuilt_loose;
    }
}

int32_t npu_open(enum npu_mode mode)
{
    uint32_t id;
    npu.base = boot->mmio_base;
    if (!trap_probe_read(npu.base + NPU_REG_ID_VERSION, &id) || id != NPU_ID) {
        return -NPU_ENOENT;
    }
    npu.caps = npu_read(NPU_REG_CAPS);
    bool has_enqcmd = (npu.caps & NPU_CAPS_ENQCMD_T) != 0;
    if (mode == NPU_MODE_TIGHT && !has_enqcmd) {
        return -NPU_EINVAL;
    }
    select_functions(has_enqcmd && mode != NPU_MODE_LOOSE);

    uint32_t control = npu_read(NPU_REG_CTRL) & NPU_CTRL_FULL_POLICY_MASK;
    npu_write(NPU_REG_CTRL, control);
    npu.ring_size = npu_read(NPU_REG_QUEUE_LIMIT);
    npu.mask = npu.ring_size - 1;
    npu.next = npu_ring;
    npu_write(NPU_REG_QUEUE_BASE_LO, (uint32_t)(uintptr_t)npu_ring);
    npu_write(NPU_REG_QUEUE_BASE_HI, 0);
    npu_write(NPU_REG_QUEUE_SIZE, npu.ring_size);
    npu.tail = npu_read(NPU_REG_QUEUE_TAIL);
    npu.limit = npu.tail + npu.ring_size;
    npu_write(NPU_REG_QUEUE_TAIL, npu.tail);
    npu_write(NPU_REG_TICKET_SEL, 0);
    npu.selected = 0;
    npu_write(NPU_REG_CTRL, control | NPU_CTRL_ENABLE_MASK);
    return 0;
}

void npu_full_policy(uint32_t policy)
{
    npu_write(NPU_REG_CTRL, NPU_CTRL_ENABLE_MASK | policy << NPU_CTRL_FULL_POLICY_SHIFT);
}

/* -- completion --------------------------------------------------------------------------------------------------- */

/* Return whether a ticket that is unknown to the device is still in the ring. */
static bool is_in_ring(int32_t ticket)
{
    uint32_t age = npu.tail - (uint32_t)ticket;
    if (npu.tail > INT32_MAX) { /* tickets wrap at 2^31, the tail does not */
        age &= INT32_MAX;
    }
    return !npu.tight && ticket > 0 && age < HISTORY;
}

int32_t npu_result(int32_t ticket)
{
    if (npu.selected != (uint32_t)ticket) {
        npu.selected = (uint32_t)ticket;
        npu_write(NPU_REG_TICKET_SEL, (uint32_t)ticket);
    }
    uint32_t status = npu_read(NPU_REG_TICKET_STATUS);
    switch (status & NPU_TICKET_STATUS_STATE_MASK) {
    case NPU_TICKET_DONE:
        return 0;
    case NPU_TICKET_ERROR:
        return -(int32_t)(status >> NPU_TICKET_STATUS_CODE_SHIFT);
    case NPU_TICKET_UNKNOWN:
        return is_in_ring(ticket) ? -NPU_EBUSY : -NPU_ENOENT;
    default:
        return -NPU_EBUSY;
    }
}

static int32_t wait_for_units(int32_t ticket, uint32_t units)
{
    int32_t result = -NPU_ETIMEDOUT;
    if (npu.tight && (npu.caps & NPU_CAPS_TWAIT) != 0) {
        for (; units > 0 && result == -NPU_ETIMEDOUT; units--) {
            result = npu_twait(ticket, 1);
        }
        return result;
    }
    uint32_t start = cycles();
    do {
        result = npu_result(ticket);
        if (result != -NPU_EBUSY) {
            return result;
        }
    } while (cycles() - start < units * NPU_TWAIT_TIMEOUT_UNIT);
    return -NPU_ETIMEDOUT;
}

static int32_t wait_watched(int32_t ticket)
{
    struct npu_watch watch;
    int32_t result;
    npu_watch_begin(&watch);
    while ((result = wait_for_units(ticket, 1)) == -NPU_ETIMEDOUT) {
        if (npu_watch(&watch) != 0) {
            return -NPU_ETIMEDOUT;
        }
    }
    return result;
}

int32_t npu_wait(int32_t ticket)
{
    if (npu.timeout != 0) {
        return wait_watched(ticket);
    }
    if (npu.tight && (npu.caps & NPU_CAPS_TWAIT) != 0) {
        return npu_twait(ticket, 0);
    }
    int32_t result;
    do {
        result = npu_result(ticket);
    } while (result == -NPU_EBUSY);
    return result;
}

int32_t npu_wait_for(int32_t ticket, uint32_t units)
{
    if (npu.timeout == 0) {
        return wait_for_units(ticket, units);
    }
    struct npu_watch watch;
    int32_t result = -NPU_ETIMEDOUT;
    npu_watch_begin(&watch);
    for (; units > 0 && result == -NPU_ETIMEDOUT; units--) {
        result = wait_for_units(ticket, 1);
        if (result == -NPU_ETIMEDOUT && npu_watch(&watch) != 0) {
            break;
        }
    }
    return result;
}

uint32_t npu_completed(void)
{
    return npu.tight ? NPU_CSR_READ(NPU_CSR_COMPLETED) : npu_read(NPU_REG_COMPLETED);
}

static int32_t drain_watched(void)
{
    struct npu_watch watch;
    npu_watch_begin(&watch);
    while ((!npu.tight && npu_read(NPU_REG_QUEUE_HEAD) != npu.tail) || npu_counter(ACCEPTED) != npu_completed()) {
        if (npu_watch(&watch) != 0) {
            return -NPU_ETIMEDOUT;
        }
    }
    return 0;
}

int32_t npu_drain(void)
{
    if (npu.timeout != 0) {
        return drain_watched();
    }
    if (!npu.tight) {
        while (npu_read(NPU_REG_QUEUE_HEAD) != npu.tail) {
        }
    }
    while (npu_counter(ACCEPTED) != npu_completed()) {
    }
    return 0;
}

struct npu_status npu_status(void)
{
    if (npu.tight && (npu.caps & NPU_CAPS_TSTAT) != 0) {
        uint32_t word = npu_tstat();
        return (struct npu_status){
            .depth = (word & NPU_TSTAT_DEPTH_MASK) >> NPU_TSTAT_DEPTH_SHIFT,
            .in_flight = (word & NPU_TSTAT_IN_FLIGHT_MASK) >> NPU_TSTAT_IN_FLIGHT_SHIFT,
            .error = (word & NPU_TSTAT_ERROR_MASK) != 0,
        };
    }
    return (struct npu_status){
        .depth = npu_counter(QUEUE_DEPTH),
        .in_flight = npu_counter(ACCEPTED) - npu_completed(),
        .error = (npu_read(NPU_REG_IRQ_STATUS) & NPU_IRQ_ERROR_MASK) != 0,
    };
}
