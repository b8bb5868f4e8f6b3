/* Exits immediately: measures the start-up cost of a run on each simulator. */
#include "bench.h"

BENCH_ROUNDS(1)

int main(void)
{
    return finish("empty", true, arg_rounds() ? 0u : 1u, 0u);
}
