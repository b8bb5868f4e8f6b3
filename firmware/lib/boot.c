/* Boot information, arguments, exit, and the ELF note with the requirements of the image. */
#include "console.h"
#include "runtime.h"

#ifndef NPU_CUSTOM_SLOT
#define NPU_CUSTOM_SLOT NPU_DEFAULT_SLOT
#endif

extern const char __image_bytes[]; /* symbols of the linker script; the address is the value */
extern const char __spm_bytes[];

static const struct __attribute__((packed)) {
    uint32_t owner_bytes, body_bytes, type;
    char owner[NPU_NOTE_NAME_BYTES];
    uint32_t abi_version, slot;
    const char *dram_bytes, *spm_bytes;
} requirements __attribute__((section(NPU_NOTE_SECTION), used, aligned(4))) = {
    sizeof(NPU_NOTE_OWNER), 8 + 2 * sizeof(char *), NPU_NOTE_REQUIREMENTS, NPU_NOTE_OWNER, NPU_ABI_VERSION, NPU_CUSTOM_SLOT, __image_bytes,
    __spm_bytes};

static const struct npu_bootinfo defaults = {
    .version = NPU_ABI_VERSION,
    .mmio_base = NPU_MAP_NPU_BASE,
    .spm_base = NPU_MAP_SPM_BASE,
    .spm_size = NPU_MAP_SPM_SIZE,
    .dram_size = NPU_MAP_DRAM_SIZE,
    .queue_size = 1024,
    .clock_hz = 1200000000,
};

const struct npu_bootinfo *boot = &defaults;

void boot_start(const struct npu_bootinfo *info);

void boot_start(const struct npu_bootinfo *info)
{
    if (info != NULL && (uintptr_t)info % sizeof(uint32_t) == 0 && info->magic == NPU_BOOTINFO_MAGIC) {
        boot = info;
    }
}

uint32_t npu_arg(uint32_t index, uint32_t otherwise)
{
    return boot->magic == NPU_BOOTINFO_MAGIC ? boot->args[index] : otherwise;
}

void firmware_exit(int code)
{
    enum { FINISHER_PASS = 0x5555, FINISHER_FAIL = 0x3333 };
    uint32_t value = code == 0 ? FINISHER_PASS : (uint32_t)code << 16 | FINISHER_FAIL;
    console_flush();
    mmio_write32(NPU_MAP_FINISHER_BASE, value);
    for (;;) {
        __asm__ volatile("wfi");
    }
}
