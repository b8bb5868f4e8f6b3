/* A GEMM in three calls: npu_load, npu_gemm, npu_store. Part of npu_driver.h (docs/opcodes.md has the other opcodes).

   Each submits one tile command and returns as npu_submit does: the ticket > 0, 0 when policy dropped it, a negative
   code; -NPU_EINVAL, and nothing is submitted, where the arguments do not fit each other or a descriptor. The device
   keeps a command behind earlier ones whose bytes it reads or overwrites, so none has to be waited for in between. */
#ifndef NPU_TILE_H
#define NPU_TILE_H

/* A matrix in the scratchpad, row after row without gaps. */
struct npu_tile {
    uint32_t address;
    uint32_t rows, columns; /* 1..65535 */
    uint32_t type; /* of an element: NPU_TYPE_INT8, ... */
};

NPU_INLINE bool npu_tile_fits(struct npu_tile tile, uint32_t row_bytes)
{
    return tile.rows - 1 < 0xffff && tile.columns - 1 < 0xffff && row_bytes <= 0xffff;
}

NPU_INLINE uint32_t npu_tile_types(uint32_t in0, uint32_t in1, uint32_t out)
{
    return NPU_DESC(TYPE_IN0, in0) | NPU_DESC(TYPE_IN1, in1) | NPU_DESC(TYPE_OUT, out);
}

/* Memory to scratchpad. row_bytes: from one row in memory to the next, at most 65535; 0: without gaps. */
NPU_INLINE int32_t npu_load(struct npu_tile to, const void *from, uint32_t row_bytes)
{
    if (!npu_tile_fits(to, row_bytes)) {
        return -NPU_EINVAL;
    }
    return npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_LOAD), 0, (uint32_t)(uintptr_t)from, 0, to.address,
                      NPU_MN(to.rows, 0), NPU_K(to.columns, row_bytes),
                      npu_tile_types(to.type, NPU_TYPE_NONE, to.type));
}

/* Scratchpad to memory. */
NPU_INLINE int32_t npu_store(void *to, struct npu_tile from, uint32_t row_bytes)
{
    if (!npu_tile_fits(from, row_bytes)) {
        return -NPU_EINVAL;
    }
    return npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_STORE), 0, from.address, 0, (uint32_t)(uintptr_t)to,
                      NPU_MN(from.rows, 0), NPU_K(from.columns, row_bytes),
                      npu_tile_types(from.type, NPU_TYPE_NONE, from.type));
}

/* One step of a product whose depth comes in several: c = a b with `first`, else c += a b; the sum stays in the
   accumulator until `last` writes c. */
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

/* c = a b. Types: integers of at most 8 bits give INT32, floats FP32 or their own type. */
NPU_INLINE int32_t npu_gemm(struct npu_tile c, struct npu_tile a, struct npu_tile b)
{
    return npu_gemm_step(c, a, b, true, true);
}

#endif
