builtin.module {
  func.func @main() attributes {npu.graph = "main"} {
    %q = npu.input {id = "q", role = "activation", index = 0 : i64} : memref<4x8xf32, "dram">
    %k = npu.input {id = "k", role = "activation", index = 1 : i64} : memref<6x8xf32, "dram">
    %linalg_generic = npu.tensor {id = "linalg.generic@12", role = "activation"} : memref<8x6xf32, "dram">
    %linalg_generic_12 = npu.tensor {id = "linalg.generic@12_2", role = "activation"} : memref<4x6xf32, "dram">
    %linalg_reduce = npu.tensor {id = "linalg.reduce@21", role = "activation"} : memref<4xf32, "dram">
    %linalg_generic_23 = npu.tensor {id = "linalg.generic@23_3", role = "activation"} : memref<4x1x1xf32, "dram">
    %linalg_generic_1 = npu.view %linalg_generic_12 {id = "linalg.generic@23", role = "activation"} : memref<4x6xf32, "dram"> to memref<4x1x6xf32, "dram">
    %linalg_generic_23_1 = npu.view %linalg_generic_12 {id = "linalg.generic@23_2", role = "activation"} : memref<4x6xf32, "dram"> to memref<4x6x1xf32, "dram">
    %result0 = npu.view %linalg_reduce {id = "result0", role = "activation"} : memref<4xf32, "dram"> to memref<4xf32, "dram">
    %result1 = npu.view %linalg_generic_23 {id = "result1", role = "activation"} : memref<4x1x1xf32, "dram"> to memref<4xf32, "dram">
    npu.copy ins(%k : memref<6x8xf32, "dram">) outs(%linalg_generic : memref<8x6xf32, "dram">) {id = "linalg.generic@12", dims = array<i64: 8, 6>, from = array<i64: 1, 8>, to = array<i64: 6, 1>}
    npu.gemm_t ins(%q, %linalg_generic : memref<4x8xf32, "dram">, memref<8x6xf32, "dram">) outs(%linalg_generic_12 : memref<4x6xf32, "dram">) {id = "linalg.generic@12_2", batch = 1 : i64, m = 4 : i64, n = 6 : i64, k = 8 : i64, step0 = 0 : i64, step1 = 0 : i64}
    npu.reduce ins(%linalg_generic_12 : memref<4x6xf32, "dram">) outs(%linalg_reduce : memref<4xf32, "dram">) {id = "linalg.reduce@21", function = "MAX", m = 4 : i64, n = 6 : i64}
    npu.gemm_t ins(%linalg_generic_1, %linalg_generic_23_1 : memref<4x1x6xf32, "dram">, memref<4x6x1xf32, "dram">) outs(%linalg_generic_23 : memref<4x1x1xf32, "dram">) {id = "linalg.generic@23_3", batch = 4 : i64, m = 1 : i64, n = 1 : i64, k = 6 : i64, step0 = 6 : i64, step1 = 6 : i64}
    npu.return {order = ["q", "k", "linalg.generic@12", "linalg.generic@12_2", "linalg.reduce@21", "linalg.generic@23", "linalg.generic@23_2", "linalg.generic@23_3", "result0", "result1"]} %result0, %result1 : memref<4xf32, "dram">, memref<4xf32, "dram">
  }
}
