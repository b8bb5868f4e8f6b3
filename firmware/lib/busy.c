/* Large loads to the same address, hence in sequence: long on the device, but cheap to simulate. */
#include "busy.h"

#include "npu_driver.h"

enum { ROWS = 1024, COLUMNS = 1024 };

NPU_STATIC_ASSERT(ROWS * COLUMNS == BUSY_SPM, "BUSY_SPM");

static uint32_t duration; /* cycles of one command; 0: not measured yet */

void busy_descriptor(struct npu_descriptor *descriptor)
{
    *descriptor = (struct npu_descriptor){
        .op = NPU_DESC(OPCODE, NPU_OPCODE_LOAD),
        .in0_addr = NPU_MAP_DRAM_BASE + boot->dram_size - ROWS * COLUMNS, /* unused by the runtime */
        .out_addr = boot->spm_base,
        .tile_m = ROWS,
        .tile_k = COLUMNS,
        .quant = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8) | NPU_DESC(TYPE_OUT, NPU_TYPE_INT8),
    };
}

/* Return the sum of busy cycles of all DMA channels. */
static uint32_t channel_cycles(void)
{
    uint32_t channels = npu_read(NPU_REG_DMA_COUNT) * npu_read(NPU_REG_CLUSTERS), sum = 0;
    for (uint32_t i = 0; i < channels; i++) {
        sum += npu_read(NPU_REG_PERF_DMA_LO(i));
    }
    return sum;
}

static int32_t busy_submit(void)
{
    static struct npu_descriptor descriptor;
    busy_descriptor(&descriptor);
    return npu_submit_prebuilt(&descriptor);
}

uint32_t busy_count(uint32_t min_cycles)
{
    if (duration == 0) {
        npu_drain();
        uint32_t before = channel_cycles();
        (void)npu_wait(busy_submit());
        duration = channel_cycles() - before;
    }
    return duration == 0 ? 1 : min_cycles / duration + 1;
}

int32_t busy_for(uint32_t min_cycles)
{
    int32_t ticket = 0;
    for (uint32_t count = busy_count(min_cycles); count > 0; count--) {
        ticket = busy_submit();
    }
    return ticket;
}
