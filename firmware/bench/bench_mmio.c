/* Accesses to a device register without side effects: the scratch register of the UART. */
#include "bench.h"

BENCH_ROUNDS(1000000)

int main(void)
{
    const uint32_t rounds = arg_rounds();
    volatile uint8_t *scratch = (volatile uint8_t *)(NPU_MAP_UART_BASE + 7);
    uint32_t checksum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        *scratch = (uint8_t)round;
        checksum = checksum * 31 + *scratch;
    }
    return finish("mmio", rounds == FULL_ROUNDS, checksum, 0x3ad56120);
}
