builtin.module {
  func.func @main() attributes {npu.graph = "main"} {
    %x = npu.input {id = "x", role = "activation", index = 0 : i64} : memref<4x8xf32, "dram">
    %w = npu.input {id = "w", role = "activation", index = 1 : i64} : memref<8x16xf32, "dram">
    %b = npu.input {id = "b", role = "activation", index = 2 : i64} : memref<16xf32, "dram">
    %linalg_matmul = npu.tensor {id = "linalg.matmul@8", role = "activation"} : memref<4x16xf32, "dram">
    %arith_addf = npu.tensor {id = "arith.addf@12", role = "activation"} : memref<4x16xf32, "dram">
    %arith_maxf = npu.tensor {id = "arith.maxf@13", role = "activation"} : memref<4x16xf32, "dram">
    %constant = npu.constant {id = "constant_2", role = "weight", value = dense<0.000000e+00> : tensor<f32>} : memref<f32, "dram">
    %linalg_generic = npu.view %b {id = "linalg.generic@9", role = "activation"} : memref<16xf32, "dram"> to memref<1x16xf32, "dram">
    %result = npu.view %arith_maxf {id = "result", role = "activation"} : memref<4x16xf32, "dram"> to memref<4x16xf32, "dram">
    npu.gemm_t ins(%x, %w : memref<4x8xf32, "dram">, memref<8x16xf32, "dram">) outs(%linalg_matmul : memref<4x16xf32, "dram">) {id = "linalg.matmul@8", batch = 1 : i64, m = 4 : i64, n = 16 : i64, k = 8 : i64, step0 = 0 : i64, step1 = 0 : i64}
    npu.eltwise ins(%linalg_matmul, %linalg_generic : memref<4x16xf32, "dram">, memref<1x16xf32, "dram">) outs(%arith_addf : memref<4x16xf32, "dram">) {id = "arith.addf@12", function = "ADD", m = 4 : i64, n = 16 : i64, broadcast = "ROW"}
    npu.eltwise ins(%arith_addf, %constant : memref<4x16xf32, "dram">, memref<f32, "dram">) outs(%arith_maxf : memref<4x16xf32, "dram">) {id = "arith.maxf@13", function = "MAX", m = 1 : i64, n = 64 : i64, broadcast = "SCALAR"}
    npu.return {order = ["x", "w", "b", "linalg.matmul@8", "linalg.generic@9", "arith.addf@12", "arith.maxf@13", "constant_2", "result"]} %result : memref<4x16xf32, "dram">
  }
}
