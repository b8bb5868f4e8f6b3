/* Trap handling in C: handler tables for exceptions and interrupts. */
#ifndef TRAP_H
#define TRAP_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum trap_exception_cause {
    TRAP_FETCH_MISALIGNED = 0,
    TRAP_FETCH_FAULT = 1,
    TRAP_ILLEGAL = 2,
    TRAP_BREAKPOINT = 3,
    TRAP_LOAD_MISALIGNED = 4,
    TRAP_LOAD_FAULT = 5,
    TRAP_STORE_MISALIGNED = 6,
    TRAP_STORE_FAULT = 7,
    TRAP_ECALL_U = 8,
    TRAP_ECALL_M = 11,
    TRAP_EXCEPTIONS = 32
};

enum trap_interrupt_cause {
    TRAP_SOFTWARE = 3,
    TRAP_TIMER = 7,
    TRAP_EXTERNAL = 11,
    TRAP_INTERRUPTS = 16
};

/* Context of an exception, which the handler may modify. If mepc is unchanged, the instruction is executed again. */
struct trap_frame {
    uintptr_t x[32]; /* x[0] is 0, x[2] the interrupted sp: writes to these two are ignored */
    uintptr_t mepc, mstatus, mcause, mtval;
};

typedef void trap_exception_handler(struct trap_frame *frame);
typedef void trap_interrupt_handler(void);

/* Install a handler and return the previous one. NULL: default handler, prints cause, mepc and mtval and exits. */
trap_exception_handler *trap_on_exception(uint32_t cause, trap_exception_handler *handler);

/* Install a handler and set its bit in mie; NULL clears the bit. The caller controls mstatus.MIE. */
void trap_on_interrupt(uint32_t cause, trap_interrupt_handler *handler);

static inline void interrupts_on(void)
{
    __asm__ volatile("csrsi mstatus, 8" ::: "memory");
}

static inline void interrupts_off(void)
{
    __asm__ volatile("csrci mstatus, 8" ::: "memory");
}

/* -- recording exceptions --------------------------------------------------------------------------------------- */

struct trap_record {
    uint32_t count, cause;
    uintptr_t mtval, mepc; /* of the last exception, like cause */
};

/* While recording, exceptions are counted and the instruction is skipped (fetch faults return to ra). */
extern volatile struct trap_record trap_record;
void trap_record_start(void);
void trap_record_stop(void);

/* Execute one instruction word with the operands a0 and a1 while recording. Return false if it trapped, with mepc
   equal to trap_word_address. The instruction may modify only t0-t6 and a0-a7. */
bool trap_word(uint32_t word, uintptr_t a0, uintptr_t a1);
extern const uintptr_t trap_word_address;

/* Read a word at an address that may be unmapped. Return false on an access fault; *value is then unchanged. */
bool trap_probe_read(uintptr_t address, uint32_t *value);

#ifdef __cplusplus
}
#endif

#endif
