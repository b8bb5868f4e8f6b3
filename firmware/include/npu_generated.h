/* Interface to code generated for a model (toolchain/mlir/npu/lowering.py), which replaces its command list. Programs
   that call it are built with -DNPU_GENERATED and linked with the generated object. */
#ifndef NPU_GENERATED_H
#define NPU_GENERATED_H

#include "kernels.h"
#include "npu_driver.h"

/* Execute a CORE command; generated code calls this before submitting it. `tail`: tail of the ring in loose mode.
   Include this header in one source only: it defines the function. */
void npu_generated_kernel(uint32_t tail, struct npu_descriptor *command);
void npu_generated_kernel(uint32_t tail, struct npu_descriptor *command)
{
    npu.tail = npu.tight ? npu.tail : tail;
    kernel_run(command);
}

/* Return the last ticket. */
typedef int32_t npu_generated_tight(uint32_t position, uint32_t token);
/* Return the new tail of the ring. */
typedef uint32_t npu_generated_loose(struct npu_descriptor *ring, uintptr_t registers, uint32_t tail, uint32_t mask,
                                     uint32_t position, uint32_t token);

/* Define generated_name(), which submits the commands of a generated function in the open mode and returns the last
   ticket. Functions that take a token store it and its position where their commands read them. */
#define NPU_GENERATED_FUNCTION(name)                                                                                 \
    npu_generated_tight npu_generated_tight_##name;                                                                  \
    npu_generated_loose npu_generated_loose_##name, npu_generated_loose_tail_##name;                                 \
    static int32_t generated_##name(uint32_t position, uint32_t token)                                               \
    {                                                                                                                \
        if (npu.tight) {                                                                                             \
            return npu_generated_tight_##name(position, token);                                                      \
        }                                                                                                            \
        npu.tail = (npu.tail_write ? npu_generated_loose_tail_##name                                                 \
                                   : npu_generated_loose_##name)(npu_ring, npu.base, npu.tail, npu.mask, position,   \
                                                                 token);                                             \
        return (int32_t)(npu.tail & INT32_MAX);                                                                      \
    }

#endif
