/* The four custom instructions and the CSRs as C expressions. Instructions without their bit in CAPS are illegal. */
#ifndef NPU_INSN_H
#define NPU_INSN_H

#include <stdint.h>

#include "npu_abi.h"

/* Opcode slot of the build (custom-0..custom-3), also recorded in the ELF note. */
#ifndef NPU_CUSTOM_SLOT
#define NPU_CUSTOM_SLOT NPU_DEFAULT_SLOT
#endif
#define NPU_CUSTOM_OPCODE NPU_CUSTOM_OPCODE_OF(NPU_CUSTOM_SLOT)
#define NPU_CUSTOM_OPCODE_OF(slot) NPU_CUSTOM_OPCODE_OF_(slot)
#define NPU_CUSTOM_OPCODE_OF_(slot) NPU_CUSTOM_OPCODE_##slot

#define NPU_INLINE static inline __attribute__((always_inline))

/* Submit the 64 bytes at `descriptor`. Return ticket > 0; 0: dropped; < 0: error. operand[7:0]: priority, stream. */
NPU_INLINE int32_t npu_enqcmd_t(const volatile void *descriptor, uint32_t operand)
{
    int32_t result;
    __asm__ volatile(".insn r %1, %2, %3, %0, %4, %z5"
                     : "=r"(result)
                     : "i"(NPU_CUSTOM_OPCODE), "i"(NPU_ENQCMD_T_FUNCT3), "i"(NPU_ENQCMD_T_FUNCT7), "r"(descriptor),
                       "rJ"(operand)
                     : "memory");
    return result;
}

/* Wait for a ticket. Return 0 or minus its error code. Constant `units`: limit in 1024 cycles; 0: no limit. */
NPU_INLINE int32_t npu_twait(int32_t ticket, const int units)
{
    int32_t result;
    __asm__ volatile(".insn i %1, %2, %0, %3, %4"
                     : "=r"(result)
                     : "i"(NPU_CUSTOM_OPCODE), "i"(NPU_TWAIT_FUNCT3), "r"(ticket), "i"(units)
                     : "memory");
    return result;
}

/* Issue a barrier. `immediate`: constant, scope | stream << NPU_TBAR_STREAM_SHIFT. */
NPU_INLINE void npu_tbar(const int immediate)
{
    __asm__ volatile(".insn i %0, %1, x0, x0, %2" ::"i"(NPU_CUSTOM_OPCODE), "i"(NPU_TBAR_FUNCT3), "i"(immediate)
                     : "memory");
}

/* Read the status word: queue depth, idle percentage of tensor engines, in flight, sticky error (NPU_TSTAT_*_MASK). */
NPU_INLINE uint32_t npu_tstat(void)
{
    uint32_t result;
    __asm__ volatile(".insn i %1, %2, %0, x0, 0"
                     : "=r"(result)
                     : "i"(NPU_CUSTOM_OPCODE), "i"(NPU_TSTAT_FUNCT3)
                     : "memory");
    return result;
}

/* Read or write a CSR that mirrors a register; `csr`: NPU_CSR_*. */
#define NPU_CSR_READ(csr)                                                              \
    __extension__({                                                                    \
        uint32_t csr_value;                                                            \
        __asm__ volatile("csrr %0, %1" : "=r"(csr_value) : "i"(csr) : "memory");       \
        csr_value;                                                                     \
    })
#define NPU_CSR_WRITE(csr, value) __asm__ volatile("csrw %0, %1" ::"i"(csr), "rK"(value) : "memory")

#endif
