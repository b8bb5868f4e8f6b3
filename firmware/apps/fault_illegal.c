/* Illegal instruction words: mcause 2, mtval = the word, mepc = its address; execution continues after them. */
#include "expect.h"
#include "npu_driver.h"
#include "runtime.h"
#include "trap.h"

#define RD(n) ((uint32_t)(n) << 7)
#define FUNCT3(n) ((uint32_t)(n) << 12)
#define RS1(n) ((uint32_t)(n) << 15)
#define RS2(n) ((uint32_t)(n) << 20)
#define IMM(n) ((uint32_t)(n) << 20)
#define CSRW(csr, rs1) (0x1073u | RS1(rs1) | (uint32_t)(csr) << 20) /* csrrw x0, csr, rs1 */

enum { A0 = 10, A1 = 11, MISA_X = 1 << 23 };

/* Encodings in the opcode slot of the build. */
#define IN_SLOT(word) (((word) & ~0x7fu) | NPU_CUSTOM_OPCODE)
#define ENQCMD_T IN_SLOT(NPU_ENQCMD_T_MATCH)
#define TWAIT IN_SLOT(NPU_TWAIT_MATCH)
#define TBAR IN_SLOT(NPU_TBAR_MATCH)
#define TSTAT IN_SLOT(NPU_TSTAT_MATCH)

struct row {
    const char *text;
    uint32_t word;
};

/* Legal only if CAPS has the instruction; in the order of the bits of CAPS. */
static const struct row instructions[] = {
    {"ENQCMD_T a0, a0, x0", ENQCMD_T | RD(A0) | RS1(A0)},
    {"TWAIT a0, a0, 0", TWAIT | RD(A0) | RS1(A0)},
    {"TBAR 0", TBAR},
    {"TSTAT a0", TSTAT | RD(A0)},
};

/* Always illegal: reserved fields are decoded strictly. */
static const struct row illegal[] = {
    {"ENQCMD_T, funct7 0x2f", ENQCMD_T | 1u << 25 | RD(A0) | RS1(A0)},
    {"ENQCMD_T, funct7 0", (ENQCMD_T & ~NPU_ENQCMD_T_MASK) | NPU_CUSTOM_OPCODE | RD(A0) | RS1(A0)},
    {"TWAIT, imm[11]", TWAIT | 1u << 31 | RD(A0) | RS1(A0)},
    {"TBAR, rd", TBAR | RD(A0)},
    {"TBAR, rs1", TBAR | RS1(A0)},
    {"TBAR, scope 3", TBAR | IMM(3)},
    {"TBAR, imm[2]", TBAR | IMM(4)},
    {"TBAR, imm[3]", TBAR | IMM(8)},
    {"TBAR, cluster with a stream", TBAR | IMM(0x11)},
    {"TBAR, global with a stream", TBAR | IMM(0x12)},
    {"TBAR, imm[8]", TBAR | IMM(0x100)},
    {"TBAR, imm[11]", TBAR | 1u << 31},
    {"TSTAT, rs1", TSTAT | RD(A0) | RS1(A0)},
    {"TSTAT, imm", TSTAT | RD(A0) | IMM(1)},
    {"funct3 4", NPU_CUSTOM_OPCODE | FUNCT3(4)},
    {"funct3 5", NPU_CUSTOM_OPCODE | FUNCT3(5)},
    {"funct3 6", NPU_CUSTOM_OPCODE | FUNCT3(6)},
    {"funct3 7", NPU_CUSTOM_OPCODE | FUNCT3(7)},
    {"all zeros", 0},
    {"all ones", 0xffffffff},
    {"write of mhartid, read-only", CSRW(0xf14, A0)},
    {"write of IRQ_STATUS, read-only", CSRW(NPU_CSR_IRQ_STATUS, A0)},
    {"CSR 0x5c0, unknown", CSRW(0x5c0, A0)},
};

static struct npu_descriptor nop;

static void expect_illegal(const struct row *row)
{
    (void)trap_word(row->word, (uintptr_t)&nop, 0);
    bool ok = trap_record.count == 1 && trap_record.cause == TRAP_ILLEGAL && trap_record.mtval == row->word &&
                trap_record.mepc == trap_word_address;
    print("%s 0x%08x: traps %u, mcause %u, mtval 0x%08x\n", row->text, (unsigned)row->word,
          (unsigned)trap_record.count, (unsigned)trap_record.cause, (unsigned)trap_record.mtval);
    expect_true("illegal", ok);
}

/* Check that a word does not trap. TWAIT returns immediately: ticket 0 does not exist. */
static void expect_legal(const struct row *row, uintptr_t a0)
{
    (void)trap_word(row->word, a0, 0);
    print("%s 0x%08x: traps %u\n", row->text, (unsigned)row->word, (unsigned)trap_record.count);
    expect_equal("legal", trap_record.count, 0);
}

int main(void)
{
    if (npu_open(NPU_MODE_AUTO) != 0) {
        print("no NPU\n");
        return 1;
    }
    print("mode %s, custom instructions 0x%x\n", npu.tight ? "tight" : "loose", (unsigned)npu.caps);
    expect_equal("misa.X", (CSR_READ(misa) & MISA_X) != 0, npu.caps != 0);
    for (uint32_t i = 0; i < sizeof(instructions) / sizeof(instructions[0]); i++) {
        if ((npu.caps >> i & 1) == 0) {
            expect_illegal(&instructions[i]);
        } else {
            uint32_t enqueue = 1u << i == NPU_CAPS_ENQCMD_T;
            expect_legal(&instructions[i], enqueue ? (uintptr_t)&nop : 0);
        }
    }
    for (uint32_t i = 0; i < sizeof(illegal) / sizeof(illegal[0]); i++) {
        expect_illegal(&illegal[i]);
    }

    int32_t ticket = npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_NOP), 0, 0, 0, 0, 0, 0, 0);
    expect_equal("a command afterwards", (uint32_t)npu_wait(ticket), 0);
    return expect_result("fault_illegal");
}
