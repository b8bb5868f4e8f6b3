/* A driver of one's own that forgets a fence: the descriptor is written, then the doorbell. Nothing orders the two, so on
   a core that lets stores to memory wait behind stores to devices, the NPU fetches what was in the ring before.

   pyv-npu build racy.c -o racy.elf --flag=-g
   pyv-npu run racy.elf --mode loose --sanitize */
#include "npu_driver.h"
#include "runtime.h"

static int32_t submit_nop(void)
{
    uint32_t tail = npu.tail;
    struct npu_descriptor *slot = &npu_ring[tail & npu.mask];
    tail++;
    slot->op = NPU_DESC(OPCODE, NPU_OPCODE_NOP);
    slot->flags = 0;
    slot->quant = 0;
    slot->param0 = 0;
    slot->param1 = 0;
    slot->status = NPU_STATUS_PENDING;
    slot->ticket = tail;
    /* Missing: __asm__ volatile("fence w, o" ::: "memory"); */
    npu_write(NPU_REG_DOORBELL, tail);
    npu.tail = tail;
    return (int32_t)tail;
}

int main(void)
{
    if (npu_open(NPU_MODE_LOOSE) != 0) {
        print("no NPU\n");
        return 1;
    }
    int32_t result = npu_wait(submit_nop());
    print("result %d\n", (int)result);
    return result == 0 ? 0 : 1;
}
