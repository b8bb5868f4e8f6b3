/* Moves data through the NPU's L2 and back, and looks whether core and NPU see what the other has written.
   flush 0: does nothing about the L2; 1: CTRL.FLUSH_L2; 2: Zicbom, line by line. Expects every byte to be the new one. */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"

NPU_ARG(0, flush, 0)

enum { SIZE = 1024, LINE = 64, BY_REGISTER = 1, BY_LINE = 2 };

static uint8_t from[SIZE] __attribute__((aligned(LINE)));
static uint8_t to[SIZE] __attribute__((aligned(LINE)));

/* Whatever the L2 holds of the bytes goes to memory, and is forgotten. */
static void flush_l2(const uint8_t *bytes)
{
    if (arg_flush() == BY_REGISTER) {
        npu_write(NPU_REG_CTRL, npu_read(NPU_REG_CTRL) | NPU_CTRL_FLUSH_L2_MASK);
        (void)npu_read(NPU_REG_CTRL);
    } else if (arg_flush() == BY_LINE) {
        for (uint32_t at = 0; at < SIZE; at += LINE) {
            __asm__ volatile(".insn i 0x0f, 2, x0, %0, 2" : : "r"(&bytes[at]) : "memory"); /* cbo.flush */
        }
    }
}

static void move(uint32_t opcode, uint32_t source, uint32_t target)
{
    uint32_t type = NPU_DESC(TYPE_IN0, NPU_TYPE_INT8) | NPU_DESC(TYPE_OUT, NPU_TYPE_INT8);
    int32_t ticket = npu_submit(NPU_DESC(OPCODE, opcode), 0, source, 0, target, NPU_MN(1, 0), NPU_K(SIZE, 0), type);
    expect_equal("result", (uint32_t)npu_wait(ticket), 0);
}

static uint32_t round_trip(uint8_t value)
{
    for (uint32_t i = 0; i < SIZE; i++) {
        from[i] = (uint8_t)(value + i);
    }
    flush_l2(from);
    move(NPU_OPCODE_LOAD, (uint32_t)(uintptr_t)from, boot->spm_base);
    move(NPU_OPCODE_STORE, boot->spm_base, (uint32_t)(uintptr_t)to);
    flush_l2(to);
    uint32_t old = 0;
    for (uint32_t i = 0; i < SIZE; i++) {
        old += ((volatile uint8_t *)to)[i] != (uint8_t)(value + i);
    }
    return old;
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    expect_equal("old bytes, first trip", round_trip(1), 0);
    expect_equal("old bytes, second trip", round_trip(77), 0);
    return expect_result("l2");
}
