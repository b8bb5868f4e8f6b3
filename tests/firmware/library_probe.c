/* The C library as a program of one's own uses it. Compiled for the host too: both print the same. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Thread_local int initialized = 41;
static _Thread_local int zero;
static int constructed;

__attribute__((constructor(200))) static void second(void)
{
    constructed = constructed * 10 + 2;
}

__attribute__((constructor(150))) static void first(void)
{
    constructed = constructed * 10 + 1;
}

__attribute__((destructor)) static void at_the_end(void)
{
    printf("destructor, and no end of line");
}

static void at_exit(void)
{
    puts("atexit");
}

static int by_value(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void heap(void)
{
    unsigned sum = 0;
    char *blocks[64];
    for (unsigned i = 0; i < 64; i++) {
        blocks[i] = malloc(100 * i + 1);
        memset(blocks[i], (int)i, 100 * i + 1);
    }
    for (unsigned i = 0; i < 64; i += 2) {
        free(blocks[i]);
    }
    for (unsigned i = 1; i < 64; i += 2) {
        blocks[i] = realloc(blocks[i], 8000);
        sum += (unsigned)blocks[i][100 * i];
    }
    printf("heap %u\n", sum);
}

int main(int argc, char *argv[])
{
    static jmp_buf back;
    int sorted[] = {5, 3, 9, -1};
    atexit(at_exit);
    printf("constructors %d, arguments end %d\n", constructed, argv[argc] == NULL);
    printf("%5.2f|%-8s|%+d|%#x|%lld|%c|%e\n", 3.14159, "left", 7, 255u, LLONG_MIN, 'c', 12345.678);
    errno = 0;
    long parsed = strtol("99999999999999999999", NULL, 10);
    printf("strtol %d, errno %d\n", parsed == LONG_MAX, errno == ERANGE);
    printf("thread %d %d\n", ++initialized, ++zero);
    qsort(sorted, 4, sizeof(sorted[0]), by_value);
    printf("sorted %d %d %d %d\n", sorted[0], sorted[1], sorted[2], sorted[3]);
    printf("%.6f %.6f %.3f\n", sqrt(2.0), pow(2.0, 0.5), strtod("1e3", NULL));
    heap();
    if (setjmp(back) == 0) {
        longjmp(back, 1);
    }
    clock_t before = clock();
    time_t now = time(NULL);
    printf("clock %d %d\n", before != (clock_t)-1, now != (time_t)-1);
    exit(42);
}
