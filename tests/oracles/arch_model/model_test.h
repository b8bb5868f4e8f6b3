/* What riscv-arch-test asks of a model: our machine ends a run by HTIF, QEMU's by asking the test finisher for a reset. */
#ifndef MODEL_TEST_H
#define MODEL_TEST_H

#define RVMODEL_BOOT

#define RVMODEL_HALT            \
    li x1, 1;                   \
    la x2, tohost;              \
    sw x1, 0(x2);               \
    sw x0, 4(x2);               \
    li x1, 0x7777;              \
    li x2, 0x100000;            \
    sw x1, 0(x2);               \
    1: j 1b

#define RVMODEL_DATA_BEGIN                                                              \
    .pushsection .tohost, "aw", @progbits;                                              \
    .align 3; .global tohost; tohost: .dword 0; .global fromhost; fromhost: .dword 0;   \
    .popsection;                                                                        \
    .align 4; .global begin_signature; begin_signature:

#define RVMODEL_DATA_END .global end_signature; end_signature:

#define RVMODEL_IO_INIT
#define RVMODEL_IO_WRITE_STR(register, text)
#define RVMODEL_IO_CHECK()
#define RVMODEL_IO_ASSERT_GPR_EQ(sp, register, value)
#define RVMODEL_IO_ASSERT_SFPR_EQ(sp, register, value)
#define RVMODEL_IO_ASSERT_DFPR_EQ(sp, register, value)
#define RVMODEL_SET_MSW_INT
#define RVMODEL_CLEAR_MSW_INT
#define RVMODEL_CLEAR_MTIMER_INT
#define RVMODEL_CLEAR_MEXT_INT

#endif
