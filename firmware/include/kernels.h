/* Operators that no engine has, as C kernels on the core (docs/firmware.md, "Kernels"). */
#ifndef KERNELS_H
#define KERNELS_H

#include "npu_driver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a command is work of the core. */
NPU_INLINE bool is_kernel(const struct npu_descriptor *command)
{
    return (command->op & NPU_DESC_OPCODE_MASK) == NPU_OPCODE_CORE << NPU_DESC_OPCODE_SHIFT;
}

/* Wait until all earlier commands are complete, do the work of a CORE command, and write begin and cycles of it into
   tile_m and tile_n: submit it then, and the device writes them down. */
void kernel_run(struct npu_descriptor *command);

#ifdef __cplusplus
}
#endif

#endif
