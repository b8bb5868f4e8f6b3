/* Accesses that a device or the bus rejects: mcause 1 and 4 to 7, mtval = address, exact mepc; execution continues. */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

/* Instruction words with the address in a0 and the value in a1. */
enum {
    LB = 0x00050583,
    LH = 0x00051583,
    LW = 0x00052583,
    LBU = 0x00054583,
    LHU = 0x00055583,
    SB = 0x00b50023,
    SH = 0x00b51023,
    SW = 0x00b52023,
    LR_W = 0x100525af,
    AMOADD_W = 0x00b525af,
    JR = 0x00050067, /* jalr x0, 0(a0): a tail call, ra is the return address */
};

#define UNMAPPED 0x20000000u

struct row {
    const char *text;
    uint32_t word, address, cause;
};

static uint32_t ram_word[2];

static void expect_fault(const struct row *row)
{
    (void)trap_word(row->word, row->address, 0);
    bool fetch = row->cause == TRAP_FETCH_FAULT;
    bool ok = trap_record.count == 1 && trap_record.cause == row->cause && trap_record.mtval == row->address &&
                trap_record.mepc == (fetch ? row->address : trap_word_address);
    print("%s at 0x%08x: traps %u, mcause %u, mtval 0x%08x\n", row->text, (unsigned)row->address,
          (unsigned)trap_record.count, (unsigned)trap_record.cause, (unsigned)trap_record.mtval);
    expect_true("fault", ok);
}

#define EXPECT_FAULTS(rows)                                                \
    for (uint32_t i = 0; i < sizeof(rows) / sizeof((rows)[0]); i++) {      \
        expect_fault(&(rows)[i]);                                          \
    }

/* Check accesses that the NPU rejects and counts in BAD_ACCESSES. */
static void npu_rejections(void)
{
    uint32_t base = npu.base;
    uint32_t engines = npu_read(NPU_REG_TE_COUNT) * npu_read(NPU_REG_CLUSTERS);
    const struct row rows[] = {
        {"lb ID_VERSION", LB, base + NPU_REG_ID_VERSION, TRAP_LOAD_FAULT},
        {"lbu ID_VERSION", LBU, base + NPU_REG_ID_VERSION, TRAP_LOAD_FAULT},
        {"lh ID_VERSION", LH, base + NPU_REG_ID_VERSION, TRAP_LOAD_FAULT},
        {"lhu ID_VERSION", LHU, base + NPU_REG_ID_VERSION, TRAP_LOAD_FAULT},
        {"sb IRQ_MASK", SB, base + NPU_REG_IRQ_MASK, TRAP_STORE_FAULT},
        {"sh IRQ_MASK", SH, base + NPU_REG_IRQ_MASK, TRAP_STORE_FAULT},
        {"lw unknown offset", LW, base + 0xff0, TRAP_LOAD_FAULT},
        {"sw unknown offset", SW, base + 0xff0, TRAP_STORE_FAULT},
        {"lw last word of the window", LW, base + NPU_MAP_NPU_SIZE - 4, TRAP_LOAD_FAULT},
        {"lw counter of an engine that is not there", LW, base + NPU_REG_PERF_TE_LO(engines), TRAP_LOAD_FAULT},
    };
    uint32_t before = npu_counter(BAD_ACCESSES);
    EXPECT_FAULTS(rows)
    expect_equal("BAD_ACCESSES", npu_counter(BAD_ACCESSES) - before, sizeof(rows) / sizeof(rows[0]));
}

/* Check accesses that the bus rejects before they reach a device. */
static void bus_rejections(void)
{
    uint32_t base = npu.base, ram = (uint32_t)(uintptr_t)ram_word;
    const struct row rows[] = {
        {"lw misaligned by 1", LW, base + NPU_REG_ID_VERSION + 1, TRAP_LOAD_MISALIGNED},
        {"lw misaligned by 2", LW, base + NPU_REG_ID_VERSION + 2, TRAP_LOAD_MISALIGNED},
        {"lh misaligned", LH, base + NPU_REG_ID_VERSION + 1, TRAP_LOAD_MISALIGNED},
        {"sw misaligned", SW, base + NPU_REG_IRQ_MASK + 2, TRAP_STORE_MISALIGNED},
        {"sh misaligned", SH, base + NPU_REG_IRQ_MASK + 3, TRAP_STORE_MISALIGNED},
        {"lw misaligned in RAM", LW, ram + 1, TRAP_LOAD_MISALIGNED},
        {"sw misaligned in RAM", SW, ram + 2, TRAP_STORE_MISALIGNED},
        {"lw unmapped", LW, UNMAPPED, TRAP_LOAD_FAULT},
        {"lbu unmapped", LBU, UNMAPPED + 3, TRAP_LOAD_FAULT},
        {"sw unmapped", SW, UNMAPPED, TRAP_STORE_FAULT},
        {"lw address 0", LW, 0, TRAP_LOAD_FAULT},
        {"jump to unmapped", JR, UNMAPPED, TRAP_FETCH_FAULT},
        {"jump into the registers", JR, base, TRAP_FETCH_FAULT},
    };
    uint32_t before = npu_counter(BAD_ACCESSES);
    EXPECT_FAULTS(rows)
    expect_equal("BAD_ACCESSES", npu_counter(BAD_ACCESSES) - before, 0);
}

static void atomics_on_registers(void)
{
    const struct row rows[] = {
        {"lr.w ID_VERSION", LR_W, npu.base + NPU_REG_ID_VERSION, TRAP_LOAD_FAULT},
        {"amoadd.w IRQ_MASK", AMOADD_W, npu.base + NPU_REG_IRQ_MASK, TRAP_STORE_FAULT},
    };
    if ((CSR_READ(misa) & 1) != 0) {
        EXPECT_FAULTS(rows)
    }
}

/* Check writes without effect: no trap, register unchanged, counted in BAD_ACCESSES. */
static void ignored_writes(void)
{
    static const uint32_t registers[] = {NPU_REG_IRQ_STATUS, NPU_REG_COMPLETED, NPU_REG_ID_VERSION, NPU_REG_CAPS,
                                         NPU_REG_QUEUE_BASE_LO, NPU_REG_QUEUE_SIZE};
    uint32_t before = npu_counter(BAD_ACCESSES);
    for (uint32_t i = 0; i < sizeof(registers) / sizeof(registers[0]); i++) {
        uint32_t value = npu_read(registers[i]);
        trap_record_start();
        npu_write(registers[i], ~value & ~0x3fu);
        uint32_t now = npu_read(registers[i]);
        trap_record_stop();
        print("write of register 0x%03x: traps %u\n", (unsigned)registers[i], (unsigned)trap_record.count);
        expect_equal("traps", trap_record.count, 0);
        expect_equal("unchanged", now, value);
    }
    expect_equal("BAD_ACCESSES", npu_counter(BAD_ACCESSES) - before, sizeof(registers) / sizeof(registers[0]));
}

/* Check that write-only registers read as 0. */
static void write_only(void)
{
    uint32_t before = npu_counter(BAD_ACCESSES);
    expect_equal("DOORBELL reads", npu_read(NPU_REG_DOORBELL), 0);
    expect_equal("IRQ_ACK reads", npu_read(NPU_REG_IRQ_ACK), 0);
    expect_equal("BAD_ACCESSES", npu_counter(BAD_ACCESSES) - before, 0);
}

static void scratchpad_byte_accesses(void)
{
    volatile uint8_t *bytes = (volatile uint8_t *)(uintptr_t)boot->spm_base;
    trap_record_start();
    for (uint32_t i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(0x11 * (i + 1));
    }
    uint32_t word = mmio_read32(boot->spm_base);
    trap_record_stop();
    expect_equal("scratchpad: traps", trap_record.count, 0);
    expect_equal("scratchpad: bytes", word, 0x44332211);
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    print("mode %s\n", npu.tight ? "tight" : "loose");
    npu_rejections();
    bus_rejections();
    atomics_on_registers();
    ignored_writes();
    write_only();
    scratchpad_byte_accesses();
    int32_t ticket = npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_NOP), 0, 0, 0, 0, 0, 0, 0);
    expect_equal("a command afterwards", (uint32_t)npu_wait(ticket), 0);
    return expect_result("fault_access");
}
