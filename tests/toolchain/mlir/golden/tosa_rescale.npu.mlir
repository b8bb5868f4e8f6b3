builtin.module {
  func.func @main() attributes {npu.graph = "main"} {
    %x = npu.input {id = "x", role = "activation", index = 0 : i64} : memref<4x8xi8, "dram">
    %w = npu.input {id = "w", role = "activation", index = 1 : i64} : memref<16x8xi8, "dram">
    %b = npu.input {id = "b", role = "activation", index = 2 : i64} : memref<16xi32, "dram">
    %tosa_fully_connected = npu.tensor {id = "tosa.fully_connected@3", role = "activation"} : memref<8x16xi8, "dram">
    %tosa_fully_connected_3 = npu.tensor {id = "tosa.fully_connected@3_2", role = "activation"} : memref<4x16xi32, "dram">
    %tosa_fully_connected_3_1 = npu.tensor {id = "tosa.fully_connected@3_3", role = "activation"} : memref<4x16xi32, "dram">
    %tosa_rescale = npu.tensor {id = "tosa.rescale@4", role = "activation"} : memref<4x16xf32, "dram">
    %constant = npu.constant {id = "constant_3", role = "weight", value = dense<7.812500e-03> : tensor<f32>} : memref<f32, "dram">
    %tosa_rescale_4 = npu.tensor {id = "tosa.rescale@4_2", role = "activation"} : memref<4x16xf32, "dram">
    %constant_1 = npu.constant {id = "constant_4", role = "weight", value = dense<1.315000e+02> : tensor<f32>} : memref<f32, "dram">
    %tosa_rescale_4_1 = npu.tensor {id = "tosa.rescale@4_3", role = "activation"} : memref<4x16xf32, "dram">
    %tosa_rescale_4_2 = npu.tensor {id = "tosa.rescale@4_4", role = "activation"} : memref<4x16xf32, "dram">
    %tosa_rescale_4_3 = npu.tensor {id = "tosa.rescale@4_5", role = "activation"} : memref<4x16xi32, "dram">
    %constant_2 = npu.constant {id = "constant_7", role = "weight", value = dense<-128> : tensor<i32>} : memref<i32, "dram">
    %tosa_rescale_4_4 = npu.tensor {id = "tosa.rescale@4_6", role = "activation"} : memref<4x16xi32, "dram">
    %tosa_rescale_4_5 = npu.tensor {id = "tosa.rescale@4_7", role = "activation"} : memref<4x16xi8, "dram">
    %result = npu.view %tosa_rescale_4_5 {id = "result", role = "activation"} : memref<4x16xi8, "dram"> to memref<4x16xi8, "dram">
    npu.copy ins(%w : memref<16x8xi8, "dram">) outs(%tosa_fully_connected : memref<8x16xi8, "dram">) {id = "tosa.fully_connected@3", dims = array<i64: 8, 16>, from = array<i64: 1, 8>, to = array<i64: 16, 1>}
    npu.gemm_t ins(%x, %tosa_fully_connected : memref<4x8xi8, "dram">, memref<8x16xi8, "dram">) outs(%tosa_fully_connected_3 : memref<4x16xi32, "dram">) {id = "tosa.fully_connected@3_2", batch = 1 : i64, m = 4 : i64, n = 16 : i64, k = 8 : i64, step0 = 0 : i64, step1 = 0 : i64, zero0 = 1 : i64, zero1 = 0 : i64}
    npu.eltwise ins(%tosa_fully_connected_3, %b : memref<4x16xi32, "dram">, memref<16xi32, "dram">) outs(%tosa_fully_connected_3_1 : memref<4x16xi32, "dram">) {id = "tosa.fully_connected@3_3", function = "ADD", m = 4 : i64, n = 16 : i64, broadcast = "ROW"}
    npu.eltwise ins(%tosa_fully_connected_3_1 : memref<4x16xi32, "dram">) outs(%tosa_rescale : memref<4x16xf32, "dram">) {id = "tosa.rescale@4", function = "CAST", m = 1 : i64, n = 64 : i64}
    npu.eltwise ins(%tosa_rescale, %constant : memref<4x16xf32, "dram">, memref<f32, "dram">) outs(%tosa_rescale_4 : memref<4x16xf32, "dram">) {id = "tosa.rescale@4_2", function = "MUL", m = 1 : i64, n = 64 : i64, broadcast = "SCALAR"}
    npu.eltwise ins(%tosa_rescale_4, %constant_1 : memref<4x16xf32, "dram">, memref<f32, "dram">) outs(%tosa_rescale_4_1 : memref<4x16xf32, "dram">) {id = "tosa.rescale@4_3", function = "ADD", m = 1 : i64, n = 64 : i64, broadcast = "SCALAR"}
    npu.eltwise ins(%tosa_rescale_4_1 : memref<4x16xf32, "dram">) outs(%tosa_rescale_4_2 : memref<4x16xf32, "dram">) {id = "tosa.rescale@4_4", function = "CLIP", m = 1 : i64, n = 64 : i64, low = 0.000000e+00 : f64, high = 2.550000e+02 : f64}
    npu.eltwise ins(%tosa_rescale_4_2 : memref<4x16xf32, "dram">) outs(%tosa_rescale_4_3 : memref<4x16xi32, "dram">) {id = "tosa.rescale@4_5", function = "CAST", m = 1 : i64, n = 64 : i64}
    npu.eltwise ins(%tosa_rescale_4_3, %constant_2 : memref<4x16xi32, "dram">, memref<i32, "dram">) outs(%tosa_rescale_4_4 : memref<4x16xi32, "dram">) {id = "tosa.rescale@4_6", function = "ADD", m = 1 : i64, n = 64 : i64, broadcast = "SCALAR"}
    npu.eltwise ins(%tosa_rescale_4_4 : memref<4x16xi32, "dram">) outs(%tosa_rescale_4_5 : memref<4x16xi8, "dram">) {id = "tosa.rescale@4_7", function = "CAST", m = 1 : i64, n = 64 : i64}
    npu.return {order = ["x", "w", "b", "tosa.fully_connected@3", "tosa.fully_connected@3_2", "tosa.fully_connected@3_3", "tosa.rescale@4", "constant_3", "tosa.rescale@4_2", "constant_4", "tosa.rescale@4_3", "tosa.rescale@4_4", "tosa.rescale@4_5", "constant_7", "tosa.rescale@4_6", "tosa.rescale@4_7", "result"]} %result : memref<4x16xi8, "dram">
  }
}
