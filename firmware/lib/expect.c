/* Checks of a test program. */
#include "expect.h"

#include "runtime.h"

static uint32_t checks, failures;

static bool check(bool good)
{
    checks++;
    failures += !good;
    return good;
}

bool expect_equal(const char *what, uint32_t seen, uint32_t wanted)
{
    bool good = check(seen == wanted);
    if (good) {
        print("ok   %s: 0x%x\n", what, (unsigned)seen);
    } else {
        print("FAIL %s: 0x%x, expected 0x%x\n", what, (unsigned)seen, (unsigned)wanted);
    }
    return good;
}

bool expect_range(const char *what, uint32_t seen, uint32_t low, uint32_t high)
{
    bool good = check(seen >= low && seen <= high);
    print("%s %s: %u, expected %u..%u\n", good ? "ok  " : "FAIL", what, (unsigned)seen, (unsigned)low, (unsigned)high);
    return good;
}

bool expect_true(const char *what, bool seen)
{
    bool good = check(seen);
    print("%s %s\n", good ? "ok  " : "FAIL", what);
    return good;
}

int expect_result(const char *program)
{
    print("%s: %s (%u checks, %u failures)\n", program, failures == 0 ? "PASS" : "FAIL", (unsigned)checks,
          (unsigned)failures);
    return failures == 0 ? 0 : 1;
}

NPU_NOISE("#, expected #..#"); /* a range says what a result may be */
