/* The NPU driver: one interface, loose (ring and doorbell) and tight (custom instructions) behind it.

   One hart, not re-entrant: interrupt handlers may ask about tickets but not submit. */
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

/* Find the NPU, set up its queue and enable it. AUTO is tight when CAPS shows ENQCMD_T.
   0; -NPU_ENOENT: no NPU of this ABI version at npu_bootinfo's address; -NPU_EINVAL: the mode is not available. */
int32_t npu_open(enum npu_mode mode);

/* -- submitting ------------------------------------------------------------------------------------------------- */

/* The fields of a tile command, as they travel in a0..a7:
   op, flags     as in the descriptor, NPU_DESC(...)
   in0, in1, out 32-bit addresses
   mn            NPU_MN(tile_m, tile_n)
   k_param       NPU_K(tile_k, param0): for LOAD and STORE param0 is the row stride in DRAM in bytes, 0 = packed
   quant         as in the descriptor
   Dimensions and param0 are at most 65535; param1 is 0. Anything else is a descriptor for npu_submit_prebuilt.

   Returns the ticket > 0; 0 when the full-queue policy dropped the command; a negative code otherwise. A full queue
   is waited for (policy retry). */
typedef int32_t npu_submit_function(uint32_t op, uint32_t flags, uint32_t in0, uint32_t in1, uint32_t out, uint32_t mn,
                                    uint32_t k_param, uint32_t quant);
#define NPU_MN(m, n) ((uint32_t)(m) | (uint32_t)(n) << 16)
#define NPU_K(k, param0) ((uint32_t)(k) | (uint32_t)(param0) << 16)

/* Submit a descriptor that lies in memory: loose copies it into the ring, tight passes its address. The driver sets
   the ticket. In tight mode the descriptor belongs to the device until the call returns, with write-back until the
   command is complete. */
typedef int32_t npu_prebuilt_function(const struct npu_descriptor *descriptor);

/* The same with waits that end, for a driver with a time-out (driver.timeout). */
npu_submit_function npu_submit_loose_watched, npu_submit_tight_watched, npu_submit_stage_watched;
npu_submit_function npu_submit_once_watched;
npu_prebuilt_function npu_submit_prebuilt_loose_watched, npu_submit_prebuilt_tight_watched;

/* Each is one complete submission; latency is measured from their first instruction (docs/firmware.md). The _tail pair
   also writes QUEUE_TAIL before the doorbell (driver.tail_write). */
npu_submit_function npu_submit_loose, npu_submit_loose_tail, npu_submit_tight;
npu_prebuilt_function npu_submit_prebuilt_loose, npu_submit_prebuilt_loose_tail, npu_submit_prebuilt_tight;

/* A batch: stage descriptors, then hand them over under one doorbell with npu_submit_staged, before waiting for any and
   at most as many as the ring holds. Tight mode has no doorbell: it submits each at once. */
npu_submit_function npu_submit_stage_loose;
void npu_submit_staged(void);

/* One attempt: -NPU_EBUSY when the queue is full. The next attempt, with the same fields, goes on with the same
   descriptor. */
npu_submit_function npu_submit_once_loose, npu_submit_once_loose_tail, npu_submit_once_tight;

/* As npu_submit, but not counted among the submissions that are measured. */
npu_submit_function npu_send;

struct npu {
    uintptr_t base; /* of the registers */
    uint32_t tail; /* loose: descriptors published, modulo 2^32 */
    uint32_t limit; /* loose: the ring is full when tail reaches it */
    uint32_t mask; /* loose: ring entries - 1 */
    struct npu_descriptor *next; /* tight: the buffer for the next command */
    npu_submit_function *submit;
    npu_prebuilt_function *submit_prebuilt;
    npu_submit_function *stage;
    npu_submit_function *submit_once;
    uint32_t caps; /* custom instructions that exist, NPU_CAPS_* */
    uint32_t ring_size; /* entries of the ring (loose), of the device queue (tight) */
    uint32_t selected; /* what TICKET_SEL holds */
    bool tight, tail_write;
    uint32_t timeout; /* cycles without progress after which a wait looks for what was lost; 0: it waits for ever */
};
extern struct npu npu;

/* The ring of loose mode, of which the device uses the first ring_size entries. Tight mode builds its descriptors in the
   first NPU_BUFFERS, one after the other. With write-back (flags[21]) at most that many commands may be in flight. */
#define NPU_RING_CAPACITY 65536u
#define NPU_BUFFERS 16u
extern struct npu_descriptor npu_ring[NPU_RING_CAPACITY];

#define npu_submit(...) (npu.submit(__VA_ARGS__))
#define npu_submit_prebuilt(descriptor) (npu.submit_prebuilt(descriptor))
#define npu_submit_stage(...) (npu.stage(__VA_ARGS__))
#define npu_submit_once(...) (npu.submit_once(__VA_ARGS__))

/* -- completion ------------------------------------------------------------------------------------------------- */

/* 0: done; a negative ticket error, -NPU_E_*; -NPU_EBUSY: not complete yet; -NPU_ENOENT: no such ticket. */
int32_t npu_result(int32_t ticket);

/* Wait for a ticket and return npu_result: TWAIT where it exists, else polling. */
int32_t npu_wait(int32_t ticket);

/* The same for at most `units` * 1024 cycles: -NPU_ETIMEDOUT when they are over. */
int32_t npu_wait_for(int32_t ticket, uint32_t units);

/* Wait until everything that was submitted is complete: 0. With a time-out also -NPU_ETIMEDOUT: there was no progress,
   the device was reset, and what had not completed is lost. */
int32_t npu_drain(void);

/* Commands complete so far, modulo 2^32, errors included. */
uint32_t npu_completed(void);

struct npu_status {
    uint32_t depth; /* accepted, not started */
    uint32_t in_flight; /* accepted, not complete */
    bool error; /* IRQ_STATUS.ERROR is set */
};
struct npu_status npu_status(void);

/* Later commands of the scope start after all earlier ones are complete. Constants; stream counts in tile scope only. */
NPU_INLINE void npu_barrier(const uint32_t scope, const uint32_t stream)
{
    if ((npu.caps & NPU_CAPS_TBAR) != 0) {
        npu_tbar((int)(scope | (scope == NPU_SCOPE_TILE ? stream << NPU_TBAR_STREAM_SHIFT : 0)));
    } else {
        (void)npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_BARRIER),
                         NPU_DESC(FUNCTION, scope) | NPU_DESC(STREAM, stream), 0, 0, 0, 0, 0, 0);
    }
}

/* -- recovery: only with a time-out ------------------------------------------------------------------------------- */

/* A wait: since when there has been no progress, and when to look again. */
struct npu_watch {
    uint32_t began, since, limit, looks;
    uint32_t progress; /* when it was last looked at */
    bool known;
};
void npu_watch_begin(struct npu_watch *watch);

/* Call it on each turn of a wait: when the time is up it looks for a lost doorbell and rings again, waits longer each
   time, and in the end resets the device: -NPU_ETIMEDOUT. Else 0. */
int32_t npu_watch(struct npu_watch *watch);

/* Whether a loop that waits for the device may go on: always without a time-out, else what npu_watch finds. */
NPU_INLINE bool npu_may_wait(struct npu_watch *watch)
{
    return npu.timeout == 0 || npu_watch(watch) == 0;
}

/* While on, with a time-out, interrupts are on and the timer's does what npu_watch does, for instructions that wait by
   themselves: a stalled ENQCMD_T, a TWAIT without limit. It takes the timer, and not in an npu_sleep. */
void npu_watchdog(bool on);

/* Reset the device and open it again; commands in flight are lost. */
void npu_restart(void);

/* What was recovered from, for the host: `count` in all, the first of them in `log`. */
struct npu_recoveries {
    uint32_t count;
    struct npu_recovery log[NPU_RECOVERIES];
};
extern struct npu_recoveries npu_recoveries;
void npu_recovered(uint32_t what, uint32_t since, uint32_t detail);

/* Whether `failed` commands are to be submitted once more, which is written down; at most NPU_REPEATS times in a row. */
enum { NPU_REPEATS = 3 };
bool npu_repeat(uint32_t repeats, uint32_t since, uint32_t failed);

/* -- interrupts ------------------------------------------------------------------------------------------------- */

/* Let the causes of `mask` (NPU_IRQ_*_MASK) interrupt. The handler acknowledges, reads IRQ_STATUS back and calls
   `scan`, which looks at tickets. The caller switches mstatus.MIE on. */
void npu_irq_enable(uint32_t mask, void (*scan)(void));
void npu_irq_disable(void);

/* Sleep until an interrupt has been handled: call it with interrupts off. wfi wakes with interrupts off too, so none is
   missed. With a time-out it also ends when the time is up, and has then handled what an interrupt would have; what it
   returns is that of npu_watch. */
int32_t npu_sleep_watched(void);
NPU_INLINE int32_t npu_sleep(void)
{
    if (npu.timeout != 0) {
        return npu_sleep_watched();
    }
    __asm__ volatile("wfi\n\tcsrsi mstatus, 8\n\tcsrci mstatus, 8" ::: "memory");
    return 0;
}

/* Clear causes in IRQ_STATUS and return what is left. The write is posted: reading back makes sure that it has arrived,
   else it could clear a later event, or leave the line up. Tight mode uses the CSRs. */
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

/* Low half of a counter: PERF_ACCEPTED, ... Differences are exact up to 2^32. */
#define npu_counter(name) npu_read(NPU_REG_PERF_##name##_LO)

/* Choose the answer to ENQCMD_T when the queue is full: NPU_FULL_*. */
void npu_full_policy(uint32_t policy);

#ifdef __cplusplus
}
#endif

#include "npu_tile.h"

#endif
