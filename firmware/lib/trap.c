/* Trap dispatch, called from trap_entry.S, and the trap recorder of test programs. */
#include "trap.h"

#include "runtime.h"

enum { EXIT_UNHANDLED_TRAP = 62, INSTRUCTION_BYTES = 4 };

static trap_exception_handler *exception_handlers[TRAP_EXCEPTIONS];
static trap_interrupt_handler *interrupt_handlers[TRAP_INTERRUPTS];

NPU_STATIC_ASSERT(sizeof(struct trap_frame) == 36 * sizeof(uintptr_t), "FRAME_FULL of trap_entry.S");

void trap_interrupt(uintptr_t mcause);
void trap_exception(struct trap_frame *frame);

trap_exception_handler *trap_on_exception(uint32_t cause, trap_exception_handler *handler)
{
    trap_exception_handler *previous = exception_handlers[cause];
    exception_handlers[cause] = handler;
    return previous;
}

void trap_on_interrupt(uint32_t cause, trap_interrupt_handler *handler)
{
    interrupt_handlers[cause] = handler;
    if (handler != NULL) {
        CSR_SET(mie, 1u << cause);
    } else {
        CSR_CLEAR(mie, 1u << cause);
    }
}

void trap_interrupt(uintptr_t mcause)
{
    interrupt_handlers[mcause % TRAP_INTERRUPTS]();
}

void trap_exception(struct trap_frame *frame)
{
    trap_exception_handler *handler = frame->mcause < TRAP_EXCEPTIONS ? exception_handlers[frame->mcause] : NULL;
    if (handler == NULL) {
        print("unhandled trap: mcause %u, mepc 0x%08x, mtval 0x%08x\n", (unsigned)frame->mcause, (unsigned)frame->mepc,
              (unsigned)frame->mtval);
        firmware_exit(EXIT_UNHANDLED_TRAP);
    }
    handler(frame);
}

/* -- recording --------------------------------------------------------------------------------------------------- */

volatile struct trap_record trap_record;
static trap_exception_handler *previous_handlers[TRAP_EXCEPTIONS];

static void record(struct trap_frame *frame)
{
    trap_record.count++;
    trap_record.cause = frame->mcause;
    trap_record.mtval = frame->mtval;
    trap_record.mepc = frame->mepc;
    bool fetch = frame->mcause == TRAP_FETCH_MISALIGNED || frame->mcause == TRAP_FETCH_FAULT;
    frame->mepc = fetch ? frame->x[1] : frame->mepc + INSTRUCTION_BYTES;
}

void trap_record_start(void)
{
    trap_record = (struct trap_record){0};
    for (uint32_t cause = 0; cause < TRAP_EXCEPTIONS; cause++) {
        previous_handlers[cause] = trap_on_exception(cause, record);
    }
}

void trap_record_stop(void)
{
    for (uint32_t cause = 0; cause < TRAP_EXCEPTIONS; cause++) {
        trap_on_exception(cause, previous_handlers[cause]);
    }
}

static uint32_t word_code[2]; /* the instruction word, followed by ret */
const uintptr_t trap_word_address = (uintptr_t)word_code;

bool trap_word(uint32_t word, uintptr_t a0, uintptr_t a1)
{
    enum { RET = 0x00008067 };
    *(volatile uint32_t *)&word_code[0] = word;
    *(volatile uint32_t *)&word_code[1] = RET;
    __asm__ volatile("fence.i" ::: "memory");
    void (*call)(uintptr_t, uintptr_t) = (void (*)(uintptr_t, uintptr_t))trap_word_address;
    trap_record_start();
    call(a0, a1);
    trap_record_stop();
    return trap_record.count == 0;
}

bool trap_probe_read(uintptr_t address, uint32_t *value)
{
    trap_record_start();
    uint32_t word = mmio_read32(address);
    trap_record_stop();
    if (trap_record.count != 0) {
        return false;
    }
    *value = word;
    return true;
}
