/* Platform hooks of the C library (picolibc) and C++: console, exit, heap, time, operator new. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

#include "console.h"
#include "runtime.h"

static int put(char c, FILE *file)
{
    (void)file;
    console_put(c);
    return (unsigned char)c;
}

static int get(FILE *file)
{
    (void)file;
    return console_get();
}

static int flush(FILE *file)
{
    (void)file;
    console_flush();
    return 0;
}

static FILE console = FDEV_SETUP_STREAM(put, get, flush, _FDEV_SETUP_RW);

FILE *const stdin = &console;
FILE *const stdout = &console;
FILE *const stderr = &console;

/* Called by exit() and on return from main. */
void _exit(int code)
{
    firmware_exit(code);
}

/* Called by raise(), abort() and assert(); exits with 128 + signal, as a shell reports it. */
int kill(pid_t process, int signal)
{
    (void)process;
    firmware_exit(128 + signal);
}

pid_t getpid(void)
{
    return 1;
}

/* Extend the heap, which spans from the end of the image to the end of DRAM. */
void *sbrk(ptrdiff_t bytes)
{
    extern char __heap_start[];
    static char *end = __heap_start;
    ptrdiff_t used = end - __heap_start;
    ptrdiff_t capacity = (char *)(uintptr_t)(NPU_MAP_DRAM_BASE + boot->dram_size) - __heap_start;
    if (bytes < -used || bytes > capacity - used) {
        errno = ENOMEM;
        return (void *)-1;
    }
    char *start = end;
    end += bytes;
    return start;
}

static uint64_t microseconds(void)
{
#if __riscv_xlen == 64
    uint64_t count = CSR_READ(mcycle);
#else
    uint32_t high, low;
    do {
        high = CSR_READ(mcycleh);
        low = CSR_READ(mcycle);
    } while (high != CSR_READ(mcycleh));
    uint64_t count = (uint64_t)high << 32 | low;
#endif
    return count / boot->clock_hz * 1000000 + count % boot->clock_hz * 1000000 / boot->clock_hz;
}

/* Return simulated time since reset. */
int gettimeofday(struct timeval *time, void *zone)
{
    (void)zone;
    uint64_t now = microseconds();
    time->tv_sec = (time_t)(now / 1000000);
    time->tv_usec = (suseconds_t)(now % 1000000);
    return 0;
}

clock_t times(struct tms *times)
{
    clock_t ticks = (clock_t)(microseconds() * CLOCKS_PER_SEC / 1000000);
    *times = (struct tms){.tms_utime = ticks};
    return ticks;
}

/* C++ support without libstdc++: mangled names of the Itanium C++ ABI. */
#if __riscv_xlen == 64
#define SIZED "m" /* mangled size_t */
#else
#define SIZED "j"
#endif
void *operator_new(size_t bytes) __asm__("_Znw" SIZED);
void *operator_new_array(size_t bytes) __asm__("_Zna" SIZED);
void operator_delete(void *memory) __asm__("_ZdlPv");
void operator_delete_array(void *memory) __asm__("_ZdaPv");
void operator_delete_sized(void *memory, size_t bytes) __asm__("_ZdlPv" SIZED);
void operator_delete_array_sized(void *memory, size_t bytes) __asm__("_ZdaPv" SIZED);
void pure_virtual(void) __asm__("__cxa_pure_virtual") __attribute__((noreturn));

void *operator_new(size_t bytes)
{
    void *memory = malloc(bytes == 0 ? 1 : bytes);
    if (memory == NULL) { /* exceptions are disabled, so std::bad_alloc is not available */
        print("operator new: no memory for %u bytes\n", (unsigned)bytes);
        abort();
    }
    return memory;
}

void *operator_new_array(size_t bytes)
{
    return operator_new(bytes);
}

void operator_delete(void *memory)
{
    free(memory);
}

void operator_delete_array(void *memory)
{
    free(memory);
}

void operator_delete_sized(void *memory, size_t bytes)
{
    (void)bytes;
    free(memory);
}

void operator_delete_array_sized(void *memory, size_t bytes)
{
    (void)bytes;
    free(memory);
}

void pure_virtual(void)
{
    print("a pure virtual function was called\n");
    abort();
}
