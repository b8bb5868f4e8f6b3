/* Commands that take long, for tests that need a busy device. */
#ifndef BUSY_H
#define BUSY_H

#include "runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scratchpad that they use, from its start: a program with NPU_NEEDS_SPM(BUSY_SPM) has room for it. */
#define BUSY_SPM 0x100000

/* Such a command. Each waits for the one before, since all write the same bytes: k of them take k times as long. */
void busy_descriptor(struct npu_descriptor *descriptor);

/* How many take at least `wanted` cycles. The first call runs one to find out. */
uint32_t busy_count(uint32_t wanted);

/* Submit as many as keep the device busy for at least `wanted` cycles: the ticket of the last one. */
int32_t busy_for(uint32_t wanted);

#ifdef __cplusplus
}
#endif

#endif
