builtin.module {
  func.func @main() attributes {npu.graph = "main"} {
    %x = npu.input {id = "x", role = "activation", index = 0 : i64} : memref<1x6x6x3xf32, "dram">
    %w = npu.input {id = "w", role = "activation", index = 1 : i64} : memref<8x3x3x3xf32, "dram">
    %b = npu.input {id = "b", role = "activation", index = 2 : i64} : memref<8xf32, "dram">
    %tosa_conv2d = npu.tensor {id = "tosa.conv2d@3", role = "activation"} : memref<1x3x6x6xf32, "dram">
    %tosa_conv2d_3 = npu.tensor {id = "tosa.conv2d@3_2", role = "activation"} : memref<8x3x3x3xf32, "dram">
    %tosa_conv2d_3_1 = npu.tensor {id = "tosa.conv2d@3_3", role = "activation"} : memref<1x8x6x6xf32, "dram">
    %tosa_conv2d_3_3_t1 = npu.tensor {id = "tosa.conv2d@3_3.t1", role = "activation"} : memref<9x3x8xf32, "dram">
    %tosa_conv2d_3_3_t3 = npu.tensor {id = "tosa.conv2d@3_3.t3", role = "activation"} : memref<1x36x3xf32, "dram">
    %tosa_conv2d_3_3_t4 = npu.tensor {id = "tosa.conv2d@3_3.t4", role = "activation"} : memref<1x36x8xf32, "dram">
    %tosa_conv2d_3_3_t5 = npu.tensor {id = "tosa.conv2d@3_3.t5", role = "activation"} : memref<1x36x8xf32, "dram">
    %tosa_conv2d_3_2 = npu.tensor {id = "tosa.conv2d@3_4", role = "activation"} : memref<1x6x6x8xf32, "dram">
    %tosa_clamp = npu.tensor {id = "tosa.clamp@4", role = "activation"} : memref<1x6x6x8xf32, "dram">
    %tosa_avg_pool2d = npu.tensor {id = "tosa.avg_pool2d@5", role = "activation"} : memref<1x8x6x6xf32, "dram">
    %tosa_avg_pool2d_5 = npu.tensor {id = "tosa.avg_pool2d@5_2", role = "activation"} : memref<1x8x1x1xf32, "dram">
    %tosa_avg_pool2d_5_2_t1 = npu.tensor {id = "tosa.avg_pool2d@5_2.t1", role = "activation"} : memref<1x36x8xf32, "dram">
    %tosa_conv2d_3_3_t0 = npu.view %tosa_conv2d_3 {id = "tosa.conv2d@3_3.t0", role = "activation"} : memref<8x3x3x3xf32, "dram"> to memref<8x3x9xf32, "dram">
    %tosa_conv2d_3_3_t2 = npu.view %tosa_conv2d {id = "tosa.conv2d@3_3.t2", role = "activation"} : memref<1x3x6x6xf32, "dram"> to memref<1x3x36xf32, "dram">
    %tosa_avg_pool2d_5_2_t0 = npu.view %tosa_avg_pool2d {id = "tosa.avg_pool2d@5_2.t0", role = "activation"} : memref<1x8x6x6xf32, "dram"> to memref<1x8x36xf32, "dram">
    %result = npu.view %tosa_avg_pool2d_5 {id = "result", role = "activation"} : memref<1x8x1x1xf32, "dram"> to memref<1x1x1x8xf32, "dram">
    npu.copy ins(%x : memref<1x6x6x3xf32, "dram">) outs(%tosa_conv2d : memref<1x3x6x6xf32, "dram">) {id = "tosa.conv2d@3", dims = array<i64: 3, 36>, from = array<i64: 1, 3>, to = array<i64: 36, 1>}
    npu.copy ins(%w : memref<8x3x3x3xf32, "dram">) outs(%tosa_conv2d_3 : memref<8x3x3x3xf32, "dram">) {id = "tosa.conv2d@3_2", dims = array<i64: 8, 3, 9>, from = array<i64: 27, 1, 3>, to = array<i64: 27, 9, 1>}
    npu.copy ins(%tosa_conv2d_3_3_t0 : memref<8x3x9xf32, "dram">) outs(%tosa_conv2d_3_3_t1 : memref<9x3x8xf32, "dram">) {id = "tosa.conv2d@3_3", dims = array<i64: 9, 3, 8>, from = array<i64: 1, 9, 27>, to = array<i64: 24, 8, 1>}
    npu.copy ins(%tosa_conv2d_3_3_t2 : memref<1x3x36xf32, "dram">) outs(%tosa_conv2d_3_3_t3 : memref<1x36x3xf32, "dram">) {id = "tosa.conv2d@3_3.1", dims = array<i64: 36, 3>, from = array<i64: 1, 36>, to = array<i64: 3, 1>}
    npu.conv2d_t ins(%tosa_conv2d_3_3_t3, %tosa_conv2d_3_3_t1 : memref<1x36x3xf32, "dram">, memref<9x3x8xf32, "dram">) outs(%tosa_conv2d_3_3_t5 : memref<1x36x8xf32, "dram">) {id = "tosa.conv2d@3_3.2", batch = 1 : i64, h = 6 : i64, w = 6 : i64, kh = 3 : i64, kw = 3 : i64, sh = 1 : i64, sw = 1 : i64, dh = 1 : i64, dw = 1 : i64, pt = 1 : i64, pl = 1 : i64, pb = 1 : i64, pr = 1 : i64, cin = 3 : i64, cout = 8 : i64, groups = 1 : i64}
    npu.eltwise ins(%tosa_conv2d_3_3_t5, %b : memref<1x36x8xf32, "dram">, memref<8xf32, "dram">) outs(%tosa_conv2d_3_3_t4 : memref<1x36x8xf32, "dram">) {id = "tosa.conv2d@3_3.3", function = "ADD", m = 36 : i64, n = 8 : i64, broadcast = "ROW"}
    npu.copy ins(%tosa_conv2d_3_3_t4 : memref<1x36x8xf32, "dram">) outs(%tosa_conv2d_3_1 : memref<1x8x6x6xf32, "dram">) {id = "tosa.conv2d@3_3.4", dims = array<i64: 8, 36>, from = array<i64: 1, 8>, to = array<i64: 36, 1>}
    npu.copy ins(%tosa_conv2d_3_1 : memref<1x8x6x6xf32, "dram">) outs(%tosa_conv2d_3_2 : memref<1x6x6x8xf32, "dram">) {id = "tosa.conv2d@3_4", dims = array<i64: 36, 8>, from = array<i64: 1, 36>, to = array<i64: 8, 1>}
    npu.eltwise ins(%tosa_conv2d_3_2 : memref<1x6x6x8xf32, "dram">) outs(%tosa_clamp : memref<1x6x6x8xf32, "dram">) {id = "tosa.clamp@4", function = "CLIP", m = 1 : i64, n = 288 : i64, low = 0.000000e+00 : f64, high = 3.3999999521443642e+38 : f64}
    npu.copy ins(%tosa_clamp : memref<1x6x6x8xf32, "dram">) outs(%tosa_avg_pool2d : memref<1x8x6x6xf32, "dram">) {id = "tosa.avg_pool2d@5", dims = array<i64: 8, 36>, from = array<i64: 1, 8>, to = array<i64: 36, 1>}
    npu.copy ins(%tosa_avg_pool2d_5_2_t0 : memref<1x8x36xf32, "dram">) outs(%tosa_avg_pool2d_5_2_t1 : memref<1x36x8xf32, "dram">) {id = "tosa.avg_pool2d@5_2", dims = array<i64: 36, 8>, from = array<i64: 1, 36>, to = array<i64: 8, 1>}
    npu.pool ins(%tosa_avg_pool2d_5_2_t1 : memref<1x36x8xf32, "dram">) outs(%tosa_avg_pool2d_5 : memref<1x8x1x1xf32, "dram">) {id = "tosa.avg_pool2d@5_2.1", function = "AVG", batch = 1 : i64, h = 6 : i64, w = 6 : i64, kh = 6 : i64, kw = 6 : i64, sh = 6 : i64, sw = 6 : i64, dh = 1 : i64, dw = 1 : i64, pt = 0 : i64, pl = 0 : i64, pb = 0 : i64, pr = 0 : i64, channels = 8 : i64}
    npu.return {order = ["x", "w", "b", "tosa.conv2d@3", "tosa.conv2d@3_2", "tosa.conv2d@3_3", "tosa.conv2d@3_3.t0", "tosa.conv2d@3_3.t1", "tosa.conv2d@3_3.t2", "tosa.conv2d@3_3.t3", "tosa.conv2d@3_3.t4", "tosa.conv2d@3_3.t5", "tosa.conv2d@3_4", "tosa.clamp@4", "tosa.avg_pool2d@5", "tosa.avg_pool2d@5_2", "tosa.avg_pool2d@5_2.t0", "tosa.avg_pool2d@5_2.t1", "result"]} %result : memref<1x1x1x8xf32, "dram">
  }
}
