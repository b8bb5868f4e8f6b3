/* C kernels on the core for operators that no engine implements (docs/firmware.md, "Kernels"). */
#ifndef KERNELS_H
#define KERNELS_H

#include "npu_driver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Return whether the core executes this command. */
NPU_INLINE bool is_kernel(const struct npu_descriptor *command)
{
    return (command->op & NPU_DESC_OPCODE_MASK) == NPU_OPCODE_CORE << NPU_DESC_OPCODE_SHIFT;
}

/* Wait until all earlier commands are complete, then execute a CORE command. Its start cycle and duration are stored in
   tile_m and tile_n. The caller submits the command afterwards, so that the device records them. */
void kernel_run(struct npu_descriptor *command);

#ifdef __cplusplus
}
#endif

#endif
