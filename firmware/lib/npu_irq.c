/* Interrupts of the NPU, in the order of docs/interface.md: acknowledge, read back, scan tickets, return.

   Acknowledging before the scan loses nothing: a command that completes during the scan raises its bit again. */
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG(14, plic, 0) /* 1: the NPU interrupts through the PLIC only (platform.irq: plic) */

enum { PLIC_PRIORITY = 0, PLIC_ENABLE = 0x2000, PLIC_THRESHOLD = 0x200000, PLIC_CLAIM = 0x200004 };

static uint32_t enabled;
static void (*scan_tickets)(void);

/* The interrupted code may be between its write of TICKET_SEL and its read of TICKET_STATUS. */
static void scan(void)
{
    uint32_t selected = npu.selected;
    scan_tickets();
    if (npu.selected != selected) {
        npu.selected = selected;
        npu_write(NPU_REG_TICKET_SEL, selected);
    }
}

uint32_t npu_irq_acknowledge(uint32_t mask)
{
    if (npu.tight) {
        NPU_CSR_WRITE(NPU_CSR_IRQ_ACK, mask);
        return NPU_CSR_READ(NPU_CSR_IRQ_STATUS);
    }
    npu_write(NPU_REG_IRQ_ACK, mask);
    return npu_read(NPU_REG_IRQ_STATUS);
}

static void handle(void)
{
    (void)npu_irq_acknowledge(enabled);
    scan();
}

static void handle_plic(void)
{
    uint32_t source = mmio_read32(NPU_MAP_PLIC_BASE + PLIC_CLAIM);
    if (source == NPU_PLIC_SOURCE_NPU) {
        handle();
    }
    mmio_write32(NPU_MAP_PLIC_BASE + PLIC_CLAIM, source);
    (void)mmio_read32(NPU_MAP_PLIC_BASE + PLIC_THRESHOLD); /* the posted completion has arrived */
}

void npu_irq_enable(uint32_t mask, void (*scan_function)(void))
{
    enabled = mask;
    scan_tickets = scan_function;
    (void)npu_irq_acknowledge(NPU_IRQ_ALL);
    npu_write(NPU_REG_IRQ_MASK, mask);
    if (arg_plic() != 0) {
        mmio_write32(NPU_MAP_PLIC_BASE + PLIC_PRIORITY + 4 * NPU_PLIC_SOURCE_NPU, 1);
        mmio_write32(NPU_MAP_PLIC_BASE + PLIC_THRESHOLD, 0);
        mmio_write32(NPU_MAP_PLIC_BASE + PLIC_ENABLE, 1u << NPU_PLIC_SOURCE_NPU);
        trap_on_interrupt(TRAP_EXTERNAL, handle_plic);
    } else {
        trap_on_interrupt(TRAP_EXTERNAL, handle);
    }
}

void npu_irq_disable(void)
{
    trap_on_interrupt(TRAP_EXTERNAL, NULL);
    npu_write(NPU_REG_IRQ_MASK, 0);
    (void)npu_read(NPU_REG_IRQ_MASK); /* the posted write has arrived: no interrupt after this */
}
