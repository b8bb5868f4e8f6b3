/* Long-running commands for tests that need a busy device. */
#ifndef BUSY_H
#define BUSY_H

#include "runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes at the start of the scratchpad that the commands write. The program must declare NPU_NEEDS_SPM(BUSY_SPM). */
#define BUSY_SPM 0x100000

/* Fill in the descriptor of a long command. All write the same bytes, so k of them take k times as long. */
void busy_descriptor(struct npu_descriptor *descriptor);

/* Return the number of commands that take at least `min_cycles`. The first call runs one command to measure it. */
uint32_t busy_count(uint32_t min_cycles);

/* Submit commands that keep the device busy for at least `min_cycles`. Return the last ticket. */
int32_t busy_for(uint32_t min_cycles);

#ifdef __cplusplus
}
#endif

#endif
