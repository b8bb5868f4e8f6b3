/* Checks of a test program. Each prints the actual value and returns whether it passed. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

bool expect_equal(const char *name, uint32_t actual, uint32_t expected);
bool expect_range(const char *name, uint32_t actual, uint32_t low, uint32_t high);
bool expect_true(const char *name, bool actual);

/* Print PASS or FAIL with the number of checks. Return the exit code for main: 0, or 1 if any check failed. */
int expect_result(const char *program);

#ifdef __cplusplus
}
#endif

#endif
