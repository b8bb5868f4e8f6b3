// Two layers: a product, whose descriptor has an extended block, and a softmax.
func.func @submission() attributes {npu.graph = "submission"} {
  %x = npu.input {id = "x", role = "activation", index = 0 : i64} : memref<4x8xf32, "dram">
  %w = npu.input {id = "w", role = "activation", index = 1 : i64} : memref<8x16xf32, "dram">
  %b = npu.input {id = "b", role = "activation", index = 2 : i64} : memref<4x16xf32, "dram">
  %t = npu.tensor {id = "t", role = "activation"} : memref<4x16xf32, "dram">
  %y = npu.tensor {id = "y", role = "activation"} : memref<4x16xf32, "dram">
  npu.gemm_t ins(%x, %w : memref<4x8xf32, "dram">, memref<8x16xf32, "dram">) outs(%t : memref<4x16xf32, "dram">) {id = "product", batch = 1 : i64, m = 4 : i64, n = 16 : i64, k = 8 : i64, step0 = 0 : i64, step1 = 0 : i64}
  npu.softmax ins(%t : memref<4x16xf32, "dram">) outs(%y : memref<4x16xf32, "dram">) {id = "weights", m = 4 : i64, n = 16 : i64}
  npu.return %y : memref<4x16xf32, "dram">
}
