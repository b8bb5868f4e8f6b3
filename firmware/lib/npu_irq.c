/* NPU interrupts, handled in the order of docs/interface.md: acknowledge, read back, scan tickets, return.

   Acknowledging before the scan is safe: a command that completes during the scan sets its bit again. */
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

NPU_ARG(14, plic, 0) /* 1: the NPU interrupts through the PLIC only (platform.irq: plic) */

enum { MTIMECMP = 0x4000, MTIME = 0xbff8, TICK = 120 /* approximate cycles per tick of mtime */ };
enum { PLIC_PRIORITY = 0, PLIC_ENABLE = 0x2000, PLIC_THRESHOLD = 0x200000, PLIC_CLAIM = 0x200004 };

static uint32_t enabled;
static void (*scan_tickets)(void);

/* Preserve TICKET_SEL: the interrupted code may be between writing it and reading TICKET_STATUS. */
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
    (void)mmio_read32(NPU_MAP_PLIC_BASE + PLIC_THRESHOLD); /* flush the posted completion */
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

/* Set mtimecmp. mstatus.MIE may be clear: the pending interrupt then only ends wfi. */
static void set_timer(uint64_t when)
{
    const uintptr_t compare = NPU_MAP_CLINT_BASE + MTIMECMP;
    mmio_write32(compare + 4, UINT32_MAX);
    mmio_write32(compare, (uint32_t)when);
    mmio_write32(compare + 4, (uint32_t)(when >> 32));
}

static uint64_t read_mtime(void)
{
    uint32_t high, low;
    do {
        high = mmio_read32(NPU_MAP_CLINT_BASE + MTIME + 4);
        low = mmio_read32(NPU_MAP_CLINT_BASE + MTIME);
    } while (high != mmio_read32(NPU_MAP_CLINT_BASE + MTIME + 4));
    return (uint64_t)high << 32 | low;
}

int32_t npu_sleep_watched(void)
{
    static struct npu_watch watch;
    if (watch.limit == 0) {
        npu_watch_begin(&watch);
    }
    uint32_t since = cycles();
    set_timer(read_mtime() + npu.timeout / TICK + 1);
    CSR_SET(mie, 1u << TRAP_TIMER);
    __asm__ volatile("wfi" ::: "memory");
    CSR_CLEAR(mie, 1u << TRAP_TIMER);
    bool woken = (CSR_READ(mip) & 1u << TRAP_EXTERNAL) != 0;
    set_timer(UINT64_MAX);
    interrupts_on();
    interrupts_off();
    if (woken) {
        return 0;
    }
    if ((npu_read(NPU_REG_IRQ_STATUS) & enabled) != 0) {
        npu_recovered(NPU_RECOVERY_INTERRUPT, since, npu_completed());
        handle();
        return 0;
    }
    return npu_watch(&watch);
}

static struct npu_watch watchdog;

static void on_watchdog_timer(void)
{
    (void)npu_watch(&watchdog);
    set_timer(read_mtime() + npu.timeout / TICK + 1);
}

void npu_watchdog(bool on)
{
    if (npu.timeout == 0) {
        return;
    }
    if (on) {
        npu_watch_begin(&watchdog);
        set_timer(read_mtime() + npu.timeout / TICK + 1);
        trap_on_interrupt(TRAP_TIMER, on_watchdog_timer);
        interrupts_on();
    } else {
        interrupts_off();
        trap_on_interrupt(TRAP_TIMER, NULL);
        set_timer(UINT64_MAX);
    }
}

void npu_irq_disable(void)
{
    trap_on_interrupt(TRAP_EXTERNAL, NULL);
    npu_write(NPU_REG_IRQ_MASK, 0);
    (void)npu_read(NPU_REG_IRQ_MASK); /* flush the posted write: no interrupt after this */
}
