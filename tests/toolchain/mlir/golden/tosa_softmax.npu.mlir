builtin.module {
  func.func @main() attributes {npu.graph = "main"} {
    %x = npu.input {id = "x", role = "activation", index = 0 : i64} : memref<4x8xf32, "dram">
    %tosa_reduce_max = npu.tensor {id = "tosa.reduce_max@3", role = "activation"} : memref<4xf32, "dram">
    %tosa_sub = npu.tensor {id = "tosa.sub@4", role = "activation"} : memref<4x8xf32, "dram">
    %tosa_exp = npu.tensor {id = "tosa.exp@5", role = "activation"} : memref<4x8xf32, "dram">
    %tosa_reduce_sum = npu.tensor {id = "tosa.reduce_sum@6", role = "activation"} : memref<4xf32, "dram">
    %tosa_reciprocal = npu.tensor {id = "tosa.reciprocal@7", role = "activation"} : memref<4x1xf32, "dram">
    %tosa_reciprocal_7_t0 = npu.constant {id = "tosa.reciprocal@7.t0", role = "weight", value = dense<1.000000e+00> : tensor<1xf32>} : memref<1xf32, "dram">
    %tosa_reciprocal_7_t1 = npu.tensor {id = "tosa.reciprocal@7.t1", role = "activation"} : memref<4x1xf32, "dram">
    %tosa_mul = npu.tensor {id = "tosa.mul@8", role = "activation"} : memref<4x8xf32, "dram">
    %tosa_reduce_max_3 = npu.view %tosa_reduce_max {id = "tosa.reduce_max@3_2", role = "activation"} : memref<4xf32, "dram"> to memref<4x1xf32, "dram">
    %tosa_reduce_sum_6 = npu.view %tosa_reduce_sum {id = "tosa.reduce_sum@6_2", role = "activation"} : memref<4xf32, "dram"> to memref<4x1xf32, "dram">
    %result = npu.view %tosa_mul {id = "result", role = "activation"} : memref<4x8xf32, "dram"> to memref<4x8xf32, "dram">
    npu.reduce ins(%x : memref<4x8xf32, "dram">) outs(%tosa_reduce_max : memref<4xf32, "dram">) {id = "tosa.reduce_max@3", function = "MAX", m = 4 : i64, n = 8 : i64}
    npu.eltwise ins(%x, %tosa_reduce_max_3 : memref<4x8xf32, "dram">, memref<4x1xf32, "dram">) outs(%tosa_sub : memref<4x8xf32, "dram">) {id = "tosa.sub@4", function = "SUB", m = 4 : i64, n = 8 : i64, broadcast = "COLUMN"}
    npu.eltwise ins(%tosa_sub : memref<4x8xf32, "dram">) outs(%tosa_exp : memref<4x8xf32, "dram">) {id = "tosa.exp@5", function = "EXP", m = 1 : i64, n = 32 : i64}
    npu.reduce ins(%tosa_exp : memref<4x8xf32, "dram">) outs(%tosa_reduce_sum : memref<4xf32, "dram">) {id = "tosa.reduce_sum@6", function = "SUM", m = 4 : i64, n = 8 : i64}
    npu.copy ins(%tosa_reciprocal_7_t0 : memref<1xf32, "dram">) outs(%tosa_reciprocal_7_t1 : memref<4x1xf32, "dram">) {id = "tosa.reciprocal@7", dims = array<i64: 4>, from = array<i64: 0>, to = array<i64: 1>}
    npu.eltwise ins(%tosa_reciprocal_7_t1, %tosa_reduce_sum_6 : memref<4x1xf32, "dram">, memref<4x1xf32, "dram">) outs(%tosa_reciprocal : memref<4x1xf32, "dram">) {id = "tosa.reciprocal@7.1", function = "DIV", m = 1 : i64, n = 4 : i64, broadcast = "FULL"}
    npu.eltwise ins(%tosa_exp, %tosa_reciprocal : memref<4x8xf32, "dram">, memref<4x1xf32, "dram">) outs(%tosa_mul : memref<4x8xf32, "dram">) {id = "tosa.mul@8", function = "MUL", m = 4 : i64, n = 8 : i64, broadcast = "COLUMN"}
    npu.return {order = ["x", "tosa.reduce_max@3", "tosa.reduce_max@3_2", "tosa.sub@4", "tosa.exp@5", "tosa.reduce_sum@6", "tosa.reduce_sum@6_2", "tosa.reciprocal@7", "tosa.reciprocal@7.t0", "tosa.reciprocal@7.t1", "tosa.mul@8", "result"]} %result : memref<4x8xf32, "dram">
  }
}
