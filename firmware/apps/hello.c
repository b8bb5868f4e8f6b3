/* Prints platform, NPU and modes. Runs on any platform with the UART and the finisher of QEMU's virt machine. */
#include "npu_driver.h"
#include "runtime.h"

NPU_ARG(0, code, 0) /* exit code, to test how the host handles it */

int main(void)
{
    print("hello from hart %u, misa 0x%08x\n", (unsigned)CSR_READ(mhartid), (unsigned)CSR_READ(misa));
    print("boot information: %s\n", boot->magic == NPU_BOOTINFO_MAGIC ? "from the platform" : "none, using defaults");
    print("DRAM %u KiB, scratchpad %u KiB at 0x%08x, clock %u Hz\n", (unsigned)(boot->dram_size >> 10),
          (unsigned)(boot->spm_size >> 10), (unsigned)boot->spm_base, (unsigned)boot->clock_hz);
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("NPU: none of ABI version %u at 0x%08x\n", NPU_ABI_VERSION, (unsigned)boot->mmio_base);
        return 1;
    }
    print("NPU: at 0x%08x, ABI version %u, queue of %u\n", (unsigned)npu.base,
          (unsigned)(npu_read(NPU_REG_ID_VERSION) & NPU_ID_VERSION_VERSION_MASK), (unsigned)npu.ring_size);
    print("NPU: %u tensor engines, %u vector engines, %u DMA channels, %u banks\n",
          (unsigned)npu_read(NPU_REG_TE_COUNT), (unsigned)npu_read(NPU_REG_VE_COUNT),
          (unsigned)npu_read(NPU_REG_DMA_COUNT), (unsigned)npu_read(NPU_REG_BANK_COUNT));
    print("NPU: custom instructions 0x%x, mode %s\n", (unsigned)npu.caps, npu.tight ? "tight" : "loose");
    return (int)arg_code();
}
