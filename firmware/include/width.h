/* Loads and stores of a whole register, and its bytes, for assembly. */
#if __riscv_xlen == 64
#define LOAD     ld
#define STORE    sd
#define REGISTER 8
#else
#define LOAD     lw
#define STORE    sw
#define REGISTER 4
#endif
