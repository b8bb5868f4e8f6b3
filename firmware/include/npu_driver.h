/* NPU driver: one interface for loose mode (ring and doorbell) and tight mode (custom instructions).

   For one hart; not re-entrant: interrupt handlers may query tickets but must not submit. */
#ifndef NPU_DRIVER_H
#define NPU_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "npu_abi.h"
#include "npu_insn.h"

#ifdef __cplusplus
extern "C" {
#endif

enum npu_mode { NPU_MODE_AUTO, NPU_MODE_LOOSE, NPU_MODE_TIGHT };

/* Probe the NPU, set up its queue and enable it. NPU_MODE_AUTO selects tight mode if CAPS has ENQCMD_T, else loose.
   Return 0; -NPU_ENOENT: no NPU of this ABI version at npu_bootinfo's address; -NPU_EINVAL: mode not available. */
int32_t npu_open(enum npu_mode mode);

/* -- submitting ------------------------------------------------------------------------------------------------- */

/* Submit a tile command. Its fields are passed in a0..a7:
   op, flags     as in the descriptor, NPU_DESC(...)
   in0, in1, out 32-bit addresses
   mn            NPU_MN(tile_m, tile_n)
   k_param       NPU_K(tile_k, param0): for LOAD and STORE param0 is the row stride in DRAM in bytes, 0 = packed
   quant         as in the descriptor
   Dimensions and param0 are at most 65535; param1 is 0. Use npu_submit_prebuilt for all other commands.

   Return the ticket > 0; 0: dropped by the full-queue policy; < 0: error code. With policy retry, the call blocks
   while the queue is full. */
typedef int32_t npu_submit_function(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                    uint32_t k_param, uint32_t quant);
#define NPU_MN(m, n) ((uint32_t)(m) | (uint32_t)(n) << 16)
#define NPU_K(k, param0) ((uint32_t)(k) | (uint32_t)(param0) << 16)

/* Submit a descriptor in memory: loose mode copies it into the ring, tight mode passes its address. The driver sets
   the ticket. In tight mode the caller must not modify the descriptor until the call returns; with status write-back,
   until the command is complete. */
typedef int32_t npu_prebuilt_function(const struct npu_descriptor *descriptor);

/* Variants with bounded waits, selected if the driver has a time-out (driver.timeout). */
npu_submit_function npu_submit_loose_watched, npu_submit_tight_watched, npu_submit_stage_watched;
npu_submit_function npu_submit_once_watched;
npu_prebuilt_function npu_submit_prebuilt_loose_watched, npu_submit_prebuilt_tight_watched;

/* Each call is one complete submission. Latency is measured from its first instruction (docs/firmware.md). The _tail
   variants also write QUEUE_TAIL before the doorbell (driver.tail_write). */
npu_submit_function npu_submit_loose, npu_submit_loose_tail, npu_submit_tight;
npu_prebuilt_function npu_submit_prebuilt_loose, npu_submit_prebuilt_loose_tail, npu_submit_prebuilt_tight;

/* Batches: stage at most ring_size descriptors, then publish them by one doorbell with npu_submit_staged, before waiting
   for any of them. Tight mode has no doorbell: it submits each descriptor immediately. */
npu_submit_function npu_submit_stage_loose;
void npu_submit_staged(void);

/* Non-blocking submission: return -NPU_EBUSY if the queue is full. A retry with the same fields reuses the same
   descriptor slot. */
npu_submit_function npu_submit_once_loose, npu_submit_once_loose_tail, npu_submit_once_tight;

/* As npu_submit, but excluded from latency measurements. */
npu_submit_function npu_send;

struct npu {
    uintptr_t base; /* address of the registers */
    uint32_t tail; /* loose: descriptors published, modulo 2^32 */
    uint32_t limit; /* loose: tail value at which the ring is full, as of the last read of HEAD */
    uint32_t mask; /* loose: ring entries - 1 */
    struct npu_descriptor *next; /* tight: buffer of the next command */
    npu_submit_function *submit;
    npu_prebuilt_function *submit_prebuilt;
    npu_submit_function *stage;
    npu_submit_function *submit_once;
    uint32_t caps; /* available custom instructions, NPU_CAPS_* */
    uint32_t ring_size; /* entries of the ring (loose) or of the device queue (tight) */
    uint32_t selected; /* current value of TICKET_SEL */
    bool tight, tail_write;
    uint32_t timeout; /* cycles without progress before a wait starts recovery; 0: waits are unbounded */
};
extern struct npu npu;

/* Ring of loose mode; the device uses the first ring_size entries. Tight mode builds its descriptors in the first
   NPU_BUFFERS entries, round robin. With status write-back (flags[21]) at most that many may be in flight. */
#define NPU_RING_CAPACITY 65536u
#define NPU_BUFFERS 16u
extern struct npu_descriptor npu_ring[NPU_RING_CAPACITY];

#define npu_submit(...) (npu.submit(__VA_ARGS__))
#define npu_submit_prebuilt(descriptor) (npu.submit_prebuilt(descriptor))
#define npu_submit_stage(...) (npu.stage(__VA_ARGS__))
#define npu_submit_once(...) (npu.submit_once(__VA_ARGS__))

/* -- completion ------------------------------------------------------------------------------------------------- */

/* Return the state of a ticket. 0: done; -NPU_E_*: failed; -NPU_EBUSY: not complete; -NPU_ENOENT: unknown. */
int32_t npu_result(int32_t ticket);

/* Wait for a ticket and return its npu_result. Uses TWAIT if available, else polls. */
int32_t npu_wait(int32_t ticket);

/* Wait for at most `units` * 1024 cycles. Return npu_result, or -NPU_ETIMEDOUT. */
int32_t npu_wait_for(int32_t ticket, uint32_t units);

/* Wait until all submitted commands are complete and return 0. With driver.timeout also -NPU_ETIMEDOUT: no progress,
   the device was reset, and incomplete commands were discarded. */
int32_t npu_drain(void);

/* Return the number of completed commands modulo 2^32, failed ones included. */
uint32_t npu_completed(void);

struct npu_status {
    uint32_t depth; /* commands accepted but not started */
    uint32_t in_flight; /* commands accepted but not complete */
    bool error; /* IRQ_STATUS.ERROR is set */
};
struct npu_status npu_status(void);

/* Submit a barrier: later commands in `scope` wait for earlier ones. Constant arguments; `stream`: tile scope only. */
NPU_INLINE void npu_barrier(const uint32_t scope, const uint32_t stream)
{
    if ((npu.caps & NPU_CAPS_TBAR) != 0) {
        npu_tbar((int)(scope | (scope == NPU_SCOPE_TILE ? stream << NPU_TBAR_STREAM_SHIFT : 0)));
    } else {
        (void)npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_BARRIER),
                         NPU_DESC(FUNCTION, scope) | NPU_DESC(STREAM, stream), 0, 0, 0, 0, 0, 0);
    }
}

/* -- recovery, active with driver.timeout -------------------------------------------------------------------------- */

/* State of a bounded wait: the last cycle with progress, and the time of the next check. */
struct npu_watch {
    uint32_t began, since, limit, looks; /* in cycles; looks: checks without progress */
    uint32_t progress; /* at the last check */
    bool known; /* progress is valid */
};
void npu_watch_begin(struct npu_watch *watch);

/* Call this in each iteration of a wait loop. When the interval expires without progress, it repeats a lost doorbell,
   else doubles the interval. Finally it resets the device and returns -NPU_ETIMEDOUT; in all other cases 0. */
int32_t npu_watch(struct npu_watch *watch);

/* Return whether a loop that waits for the device may continue: always without driver.timeout, else per npu_watch. */
NPU_INLINE bool npu_may_wait(struct npu_watch *watch)
{
    return npu.timeout == 0 || npu_watch(watch) == 0;
}

/* Call npu_watch from the timer interrupt while instructions block the hart: a stalled ENQCMD_T, an unbounded TWAIT.
   Needs driver.timeout; enables interrupts and owns the timer while on. Must not be combined with npu_sleep. */
void npu_watchdog(bool on);

/* Reset the device and open it again. Commands in flight are discarded. */
void npu_restart(void);

/* Log of recoveries, read by the host: the first NPU_RECOVERIES of `count`. */
struct npu_recoveries {
    uint32_t count;
    struct npu_recovery log[NPU_RECOVERIES];
};
extern struct npu_recoveries npu_recoveries;
void npu_recovered(uint32_t what, uint32_t since, uint32_t detail);

/* Return whether to submit `failed` commands again, at most NPU_REPEATS times in a row, and log the repetition. */
enum { NPU_REPEATS = 3 };
bool npu_repeat(uint32_t repeats, uint32_t since, uint32_t failed);

/* -- interrupts ------------------------------------------------------------------------------------------------- */

/* Enable the causes in `mask` (NPU_IRQ_*_MASK). The handler acknowledges them, reads IRQ_STATUS back and calls `scan`,
   which checks tickets. The caller sets mstatus.MIE. */
void npu_irq_enable(uint32_t mask, void (*scan)(void));
void npu_irq_disable(void);

/* Sleep until an interrupt has been handled and return 0. Call it with mstatus.MIE clear: wfi wakes up anyway, so no
   interrupt is missed. With driver.timeout it also returns when the time-out expires; a lost interrupt is then handled,
   otherwise the result is that of npu_watch. */
int32_t npu_sleep_watched(void);
NPU_INLINE int32_t npu_sleep(void)
{
    if (npu.timeout != 0) {
        return npu_sleep_watched();
    }
    __asm__ volatile("wfi\n\tcsrsi mstatus, 8\n\tcsrci mstatus, 8" ::: "memory");
    return 0;
}

/* Clear causes in IRQ_STATUS and return the remaining ones. The write is posted; reading back ensures that it has taken
   effect. Otherwise it could clear a later event or leave the line asserted. Tight mode uses the CSRs. */
uint32_t npu_irq_acknowledge(uint32_t mask);

/* -- registers -------------------------------------------------------------------------------------------------- */

NPU_INLINE uint32_t npu_read(uint32_t reg)
{
    return *(volatile uint32_t *)(npu.base + reg);
}

NPU_INLINE void npu_write(uint32_t reg, uint32_t value)
{
    *(volatile uint32_t *)(npu.base + reg) = value;
}

/* Read the low word of a counter PERF_name. Differences below 2^32 are exact. */
#define npu_counter(name) npu_read(NPU_REG_PERF_##name##_LO)

/* Set the response to ENQCMD_T on a full queue: NPU_FULL_*. */
void npu_full_policy(uint32_t policy);

#ifdef __cplusplus
}
#endif

#include "npu_tile.h"

#endif
