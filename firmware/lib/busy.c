/* Large tile products with one result tile, hence one after the other. */
#include "busy.h"

#include "npu_driver.h"

enum { ROWS = 128, COLUMNS = 128, DEPTH = 2048, OPERAND = ROWS * DEPTH };

NPU_STATIC_ASSERT(2 * OPERAND + ROWS * COLUMNS * 4 == BUSY_SPM, "BUSY_SPM");

static uint32_t duration; /* of one, 0 unknown */

void busy_descriptor(struct npu_descriptor *descriptor)
{
    uint32_t spm = boot->spm_base;
    *descriptor = (struct npu_descriptor){
        .op = NPU_DESC(OPCODE, NPU_OPCODE_GEMM_T),
        .in0_addr = spm,
        .in1_addr = spm + OPERAND,
        .out_addr = spm + 2 * OPERAND,
        .tile_m = ROWS,
        .tile_n = COLUMNS,
        .tile_k = DEPTH,
        .quant = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8) | NPU_DESC(TYPE_IN1, NPU_TYPE_INT8) |
                 NPU_DESC(TYPE_OUT, NPU_TYPE_INT32),
    };
}

/* Busy cycles of all tensor engines. */
static uint32_t engine_cycles(void)
{
    uint32_t engines = npu_read(NPU_REG_TE_COUNT) * npu_read(NPU_REG_CLUSTERS), sum = 0;
    for (uint32_t i = 0; i < engines; i++) {
        sum += npu_read(NPU_REG_PERF_TE_LO(i));
    }
    return sum;
}

static int32_t busy_submit(void)
{
    static struct npu_descriptor descriptor;
    busy_descriptor(&descriptor);
    return npu_submit_prebuilt(&descriptor);
}

uint32_t busy_count(uint32_t wanted)
{
    if (duration == 0) {
        npu_drain();
        uint32_t before = engine_cycles();
        (void)npu_wait(busy_submit());
        duration = engine_cycles() - before;
    }
    return wanted / duration + 1;
}

int32_t busy_for(uint32_t wanted)
{
    int32_t ticket = 0;
    for (uint32_t count = busy_count(wanted); count > 0; count--) {
        ticket = busy_submit();
    }
    return ticket;
}
