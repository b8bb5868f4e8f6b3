/* Assembly macros for XLEN: load and store of a register, and its size in bytes. */
#if __riscv_xlen == 64
#define LOAD     ld
#define STORE    sd
#define REGISTER 8
#else
#define LOAD     lw
#define STORE    sw
#define REGISTER 4
#endif
