/* Runtime of every program: console, exit, boot information, arguments, cycle counter. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "npu_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -- control and status registers ------------------------------------------------------------------------------- */

#define CSR_READ(csr)                                            \
    __extension__({                                              \
        unsigned long csr_value;                                 \
        __asm__ volatile("csrr %0, " #csr : "=r"(csr_value));    \
        csr_value;                                               \
    })
#define CSR_WRITE(csr, value) __asm__ volatile("csrw " #csr ", %0" ::"rK"(value) : "memory")
#define CSR_SET(csr, bits) __asm__ volatile("csrs " #csr ", %0" ::"rK"(bits) : "memory")
#define CSR_CLEAR(csr, bits) __asm__ volatile("csrc " #csr ", %0" ::"rK"(bits) : "memory")

/* Read the low word of mcycle. Differences below 2^32 cycles are exact. */
static inline uint32_t cycles(void)
{
    return CSR_READ(mcycle);
}

/* -- devices ---------------------------------------------------------------------------------------------------- */

static inline uint32_t mmio_read32(uintptr_t address)
{
    return *(volatile uint32_t *)address;
}

static inline void mmio_write32(uintptr_t address, uint32_t value)
{
    *(volatile uint32_t *)address = value;
}

/* -- console and exit ------------------------------------------------------------------------------------------- */

/* Minimal printf: %d %u %x %c %s %%, a field width padded with zeros or blanks, and the length modifier ll. */
void print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* End the run with an exit code of 0 (success) to 65535. Returning from main has the same effect. */
void firmware_exit(int code) __attribute__((noreturn));

/* -- boot information and arguments ----------------------------------------------------------------------------- */

/* npu_bootinfo of the platform, or the defaults of npu_abi.h on a platform without it. Never NULL after start-up. */
extern const struct npu_bootinfo *boot;

/* Return the value of an argument, or `otherwise` on a platform without npu_bootinfo. Programs use NPU_ARG. */
uint32_t npu_arg(uint32_t index, uint32_t otherwise);

#define NPU_NOTE_NAME_BYTES 8 /* NPU_NOTE_OWNER with its terminator, padded to words */

/* Declare the argument `name` (--arg name=value) in the ELF note, and a function arg_name() that returns it. */
#define NPU_ARG(number, name, otherwise)                                                                       \
    NPU_NUMBERS_NOTE(npu_note_##name, NPU_NOTE_ARGUMENT, (number), (otherwise), #name);                        \
    NPU_STATIC_ASSERT((number) < NPU_BOOTINFO_ARGS, "npu_bootinfo has 16 arguments");                          \
    static inline uint32_t arg_##name(void)                                                                    \
    {                                                                                                          \
        return npu_arg((number), (otherwise));                                                                 \
    }

/* As NPU_ARG, with the unsigned range low..high: the platform rejects other values. */
#define NPU_ARG_IN(number, name, otherwise, low, high)                                                         \
    NPU_NUMBERS_NOTE(npu_range_##name, NPU_NOTE_RANGE, (low), (high), #name);                                  \
    NPU_STATIC_ASSERT((low) <= (otherwise) && (otherwise) <= (high), "the default lies outside of the range"); \
    NPU_ARG(number, name, otherwise)

#define NPU_COUNT_MAX 0x7fffffffu /* upper limit of a count; negative values exceed it */

/* ELF note with two numbers and a text. */
#define NPU_NUMBERS_NOTE(note, kind, first, second, name)                                                      \
    static const struct {                                                                                      \
        uint32_t owner_bytes, body_bytes, type;                                                                \
        char owner[NPU_NOTE_NAME_BYTES];                                                                       \
        uint32_t numbers[2];                                                                                   \
        char text[(sizeof(name) + 3) / 4 * 4];                                                                 \
    } note __attribute__((section(NPU_NOTE_SECTION), used, aligned(4))) = {                                    \
        sizeof(NPU_NOTE_OWNER), 8 + (sizeof(name) + 3) / 4 * 4, kind, NPU_NOTE_OWNER, {(first), (second)}, name}

/* Declare printed numbers that are not results, such as times. Each # in the text matches one number. Fault campaigns
   compare the rest of the output. Use at most one per source line. */
#define NPU_NOISE(text) NPU_NOISE_ON(__LINE__, text)
#define NPU_NOISE_ON(line, text) NPU_NOISE_NOTE(line, text)
#define NPU_NOISE_NOTE(line, text)                                                                             \
    static const struct {                                                                                      \
        uint32_t owner_bytes, body_bytes, type;                                                                \
        char owner[NPU_NOTE_NAME_BYTES];                                                                       \
        char body[(sizeof(text) + 3) / 4 * 4];                                                                 \
    } npu_noise_##line __attribute__((section(NPU_NOTE_SECTION), used, aligned(4))) = {                        \
        sizeof(NPU_NOTE_OWNER), (sizeof(text) + 3) / 4 * 4, NPU_NOTE_NOISE, NPU_NOTE_OWNER, text}

/* Declare the scratchpad bytes that the program needs (constant, once): platforms with less refuse to load it. */
#define NPU_NEEDS_SPM(bytes)                                                                                   \
    __attribute__((used)) static void npu_needs_spm(void)                                                      \
    {                                                                                                          \
        __asm__(".globl __spm_bytes\n.set __spm_bytes, %0" : : "i"(bytes));                                    \
    }                                                                                                          \
    NPU_STATIC_ASSERT((bytes) > 0, "of scratchpad")

#ifdef __cplusplus
}
#endif

#endif
