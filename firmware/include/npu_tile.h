/* GEMM in three calls: npu_load, npu_gemm, npu_store. Included by npu_driver.h (other opcodes: docs/opcodes.md).

   Each submits one tile command and returns as npu_submit: the ticket > 0; 0: dropped by the full-queue policy; < 0:
   error code. -NPU_EINVAL: shapes do not match or exceed the descriptor's fields; nothing is submitted. The device
   orders a command after earlier ones whose bytes it reads or overwrites: no waits are needed in between. */
#ifndef NPU_TILE_H
#define NPU_TILE_H

/* Dense row-major matrix in the scratchpad. */
struct npu_tile {
    uint32_t address;
    uint32_t rows, columns; /* 1..65535 */
    uint32_t type; /* element type: NPU_TYPE_INT8, ... */
};

NPU_INLINE bool npu_tile_fits(struct npu_tile tile, uint32_t row_bytes)
{
    return tile.rows - 1 < 0xffff && tile.columns - 1 < 0xffff && row_bytes <= 0xffff;
}

NPU_INLINE uint32_t npu_tile_types(uint32_t in0, uint32_t in1, uint32_t out)
{
    return NPU_DESC(TYPE_IN0, in0) | NPU_DESC(TYPE_IN1, in1) | NPU_DESC(TYPE_OUT, out);
}

/* Copy a matrix from memory to the scratchpad. row_bytes: row stride in memory, at most 65535; 0: dense. */
NPU_INLINE int32_t npu_load(struct npu_tile to, const void *from, uint32_t row_bytes)
{
    if (!npu_tile_fits(to, row_bytes)) {
        return -NPU_EINVAL;
    }
    return npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_LOAD), 0, (uint32_t)(uintptr_t)from, 0, to.address,
                      NPU_MN(to.rows, 0), NPU_K(to.columns, row_bytes),
                      npu_tile_types(to.type, NPU_TYPE_NONE, to.type));
}

/* Copy a matrix from the scratchpad to memory. */
NPU_INLINE int32_t npu_store(void *to, struct npu_tile from, uint32_t row_bytes)
{
    if (!npu_tile_fits(from, row_bytes)) {
        return -NPU_EINVAL;
    }
    return npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_STORE), 0, from.address, 0, (uint32_t)(uintptr_t)to,
                      NPU_MN(from.rows, 0), NPU_K(from.columns, row_bytes),
                      npu_tile_types(from.type, NPU_TYPE_NONE, from.type));
}

/* Compute one step of a product that is split along its depth: c = a b if `first`, else c += a b. The sum stays in the
   accumulator; the `last` step writes c. */
NPU_INLINE int32_t npu_gemm_step(struct npu_tile c, struct npu_tile a, struct npu_tile b, bool first, bool last)
{
    if (!npu_tile_fits(a, 0) || !npu_tile_fits(c, 0) || a.rows != c.rows || b.columns != c.columns ||
        a.columns != b.rows) {
        return -NPU_EINVAL;
    }
    return npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_GEMM_T),
                      NPU_DESC(ACCUMULATE, !first) | NPU_DESC(FUNCTION, last ? NPU_GEMM_WRITE : NPU_GEMM_HOLD),
                      a.address, b.address, c.address, NPU_MN(c.rows, c.columns), NPU_K(a.columns, 0),
                      npu_tile_types(a.type, b.type, c.type));
}

/* Compute c = a b. Result type: INT32 for integers of at most 8 bits; FP32 or the operand type for floats. */
NPU_INLINE int32_t npu_gemm(struct npu_tile c, struct npu_tile a, struct npu_tile b)
{
    return npu_gemm_step(c, a, b, true, true);
}

#endif
