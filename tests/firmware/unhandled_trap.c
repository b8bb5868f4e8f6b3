/* A trap without a handler ends the run. */
#include "runtime.h"

int main(void)
{
    __asm__ volatile(".word 0");
    return 0;
}
