/* Checks of a test program. */
#include "expect.h"

#include "runtime.h"

static uint32_t checks, failures;

static bool check(bool ok)
{
    checks++;
    failures += !ok;
    return ok;
}

bool expect_equal(const char *name, uint32_t actual, uint32_t expected)
{
    bool ok = check(actual == expected);
    if (ok) {
        print("ok   %s: 0x%x\n", name, (unsigned)actual);
    } else {
        print("FAIL %s: 0x%x, expected 0x%x\n", name, (unsigned)actual, (unsigned)expected);
    }
    return ok;
}

bool expect_range(const char *name, uint32_t actual, uint32_t low, uint32_t high)
{
    bool ok = check(actual >= low && actual <= high);
    print("%s %s: %u, expected %u..%u\n", ok ? "ok  " : "FAIL", name, (unsigned)actual, (unsigned)low, (unsigned)high);
    return ok;
}

bool expect_true(const char *name, bool actual)
{
    bool ok = check(actual);
    print("%s %s\n", ok ? "ok  " : "FAIL", name);
    return ok;
}

int expect_result(const char *program)
{
    print("%s: %s (%u checks, %u failures)\n", program, failures == 0 ? "PASS" : "FAIL", (unsigned)checks,
          (unsigned)failures);
    return failures == 0 ? 0 : 1;
}

NPU_NOISE("#, expected #..#"); /* any value in the range is a valid result */
