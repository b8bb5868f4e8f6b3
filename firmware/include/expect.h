/* Checks of a test program: each prints what it saw; the last line says PASS or FAIL. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

bool expect_equal(const char *what, uint32_t seen, uint32_t wanted);
bool expect_range(const char *what, uint32_t seen, uint32_t low, uint32_t high);
bool expect_true(const char *what, bool seen);

/* Print the result and return the exit code for main: 0, or 1 when anything failed. */
int expect_result(const char *program);

#ifdef __cplusplus
}
#endif

#endif
