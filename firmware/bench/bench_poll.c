/* Polling: reads of a constant status register, the line status of the UART. */
#include "bench.h"

BENCH_ROUNDS(1000000)

int main(void)
{
    const uint32_t rounds = arg_rounds();
    volatile uint8_t *status = (volatile uint8_t *)(NPU_MAP_UART_BASE + 5);
    uint32_t checksum = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        checksum += *status;
    }
    return finish("poll", rounds == FULL_ROUNDS, checksum, 96000000);
}
