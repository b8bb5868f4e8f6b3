/* Floating point of a hart with F, and D where it has it, interrupted by handlers that compute with f registers too. */
#include "runtime.h"
#include "trap.h"

#define MTIMECMP ((volatile uint32_t *)(NPU_MAP_CLINT_BASE + 0x4000u))
#define MTIME ((volatile uint32_t *)(NPU_MAP_CLINT_BASE + 0xBFF8u))

#if __riscv_flen == 64
typedef double number;
#else
typedef float number;
#endif

static volatile uint32_t ticks;
static volatile number noise = 3;

static number polynomial(number x)
{
    number a = x + 1, b = x * a, c = a / (b + 1), d = a * b + c;
    return ((a - d) * c + b) / (d + 2) - a * c;
}

static void timer(void)
{
    noise = polynomial(noise);
    __asm__ volatile("fscsr zero");
    ticks++;
    *MTIMECMP = *MTIME + 5;
}

static void skip(struct trap_frame *frame)
{
    noise = polynomial(noise);
    frame->mepc += 4;
}

static uint32_t work(uint32_t *flags)
{
    union {
        number value;
        uint32_t words[sizeof(number) / 4];
    } sum = {0};
    number x = (number)0.375;
    for (uint32_t round = 0; round < 1000; round++) {
        x = x * (1 - x) * (number)3.7;
        sum.value += polynomial(x) / (number)(1 + round);
        if (round % 128 == 0) {
            __asm__ volatile("ecall");
        }
    }
    __asm__ volatile("csrr %0, fflags" : "=r"(*flags));
    return sum.words[0] ^ sum.words[sizeof sum.words / 4 - 1];
}

int main(void)
{
    uint32_t flags[2];
    trap_on_exception(TRAP_ECALL_M, skip);
    uint32_t alone = work(&flags[0]);
    MTIMECMP[1] = 0;
    *MTIMECMP = *MTIME + 5;
    trap_on_interrupt(TRAP_TIMER, timer);
    interrupts_on();
    uint32_t interrupted = work(&flags[1]);
    interrupts_off();
    print("%x %x %u %u %s\n", (unsigned)alone, (unsigned)interrupted, (unsigned)flags[0], (unsigned)flags[1],
          ticks > 10 ? "often" : "rarely");
    return alone != interrupted || flags[0] != flags[1];
}
