/* Does nothing but end: what the start of a run costs, on every side. */
#include "bench.h"

BENCH_ROUNDS(1)

int main(void)
{
    return finish("empty", true, arg_rounds() ? 0u : 1u, 0u);
}
