/* External interrupts: the transmitter of the UART interrupts through the PLIC, and its handler claims, identifies, sends
   and completes. The output does not depend on interrupt timing. */
#include "bench.h"
#include "trap.h"

BENCH_ROUNDS(200000)

enum { SOURCE = 10, PRIORITY = 0, ENABLE = 0x2000, THRESHOLD = 0x200000, CLAIM = 0x200004 };
enum { THR = 0, IER = 1, IIR = 2, TRANSMITTER = 2 };

static uint32_t rounds;
static uint16_t crc;
static volatile uint32_t sent;

static volatile uint32_t *plic(uint32_t offset)
{
    return (volatile uint32_t *)(NPU_MAP_PLIC_BASE + offset);
}

static void external(void)
{
    volatile uint8_t *uart = (volatile uint8_t *)NPU_MAP_UART_BASE;
    uint32_t source = *plic(CLAIM);
    bool empty = (uart[IIR] & 0xFu) == TRANSMITTER;
    if (empty && sent < rounds) {
        uint8_t character = (uint8_t)(sent % 64u == 63u ? '\n' : 'a' + sent % 26u);
        crc = crc16(crc, (uint16_t)(source << 8 | character));
        uart[THR] = character;
        sent++;
    } else if (empty) {
        uart[IER] = 0;
    }
    *plic(CLAIM) = source;
}

int main(void)
{
    rounds = arg_rounds();
    trap_on_interrupt(TRAP_EXTERNAL, external);
    *plic(PRIORITY + 4 * SOURCE) = 1;
    *plic(ENABLE) = 1u << SOURCE;
    *plic(THRESHOLD) = 0;
    ((volatile uint8_t *)NPU_MAP_UART_BASE)[IER] = TRANSMITTER;
    interrupts_on();
    while (sent < rounds) {
        __asm__ volatile("" ::: "memory");
    }
    interrupts_off();
    return finish("\nexternal", rounds == FULL_ROUNDS, crc, 0xe3a5);
}
