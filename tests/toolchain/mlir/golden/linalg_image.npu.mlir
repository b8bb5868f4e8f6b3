builtin.module {
  func.func @main() attributes {npu.graph = "main"} {
    %x = npu.input {id = "x", role = "activation", index = 0 : i64} : memref<1x6x6x3xf32, "dram">
    %w = npu.input {id = "w", role = "activation", index = 1 : i64} : memref<3x3x3x8xf32, "dram">
    %linalg_conv_2d_nhwc_hwcf = npu.tensor {id = "linalg.conv_2d_nhwc_hwcf@7", role = "activation"} : memref<1x3x6x6xf32, "dram">
    %linalg_conv_2d_nhwc_hwcf_7 = npu.tensor {id = "linalg.conv_2d_nhwc_hwcf@7_2", role = "activation"} : memref<8x3x3x3xf32, "dram">
    %linalg_conv_2d_nhwc_hwcf_7_1 = npu.tensor {id = "linalg.conv_2d_nhwc_hwcf@7_3", role = "activation"} : memref<1x8x4x4xf32, "dram">
    %linalg_conv_2d_nhwc_hwcf_7_3_t1 = npu.tensor {id = "linalg.conv_2d_nhwc_hwcf@7_3.t1", role = "activation"} : memref<9x3x8xf32, "dram">
    %linalg_conv_2d_nhwc_hwcf_7_3_t3 = npu.tensor {id = "linalg.conv_2d_nhwc_hwcf@7_3.t3", role = "activation"} : memref<1x36x3xf32, "dram">
    %linalg_conv_2d_nhwc_hwcf_7_3_t4 = npu.tensor {id = "linalg.conv_2d_nhwc_hwcf@7_3.t4", role = "activation"} : memref<1x16x8xf32, "dram">
    %linalg_conv_2d_nhwc_hwcf_7_2 = npu.tensor {id = "linalg.conv_2d_nhwc_hwcf@7_4", role = "activation"} : memref<1x4x4x8xf32, "dram">
    %linalg_pooling_nhwc_max = npu.tensor {id = "linalg.pooling_nhwc_max@12", role = "activation"} : memref<1x8x4x4xf32, "dram">
    %linalg_pooling_nhwc_max_12 = npu.tensor {id = "linalg.pooling_nhwc_max@12_2", role = "activation"} : memref<1x8x2x2xf32, "dram">
    %linalg_pooling_nhwc_max_12_2_t0 = npu.tensor {id = "linalg.pooling_nhwc_max@12_2.t0", role = "activation"} : memref<1x4x8xf32, "dram">
    %linalg_pooling_nhwc_max_12_2_t2 = npu.tensor {id = "linalg.pooling_nhwc_max@12_2.t2", role = "activation"} : memref<1x16x8xf32, "dram">
    %linalg_pooling_nhwc_max_12_1 = npu.tensor {id = "linalg.pooling_nhwc_max@12_3", role = "activation"} : memref<1x2x2x8xf32, "dram">
    %linalg_conv_2d_nhwc_hwcf_7_3_t0 = npu.view %linalg_conv_2d_nhwc_hwcf_7 {id = "linalg.conv_2d_nhwc_hwcf@7_3.t0", role = "activation"} : memref<8x3x3x3xf32, "dram"> to memref<8x3x9xf32, "dram">
    %linalg_conv_2d_nhwc_hwcf_7_3_t2 = npu.view %linalg_conv_2d_nhwc_hwcf {id = "linalg.conv_2d_nhwc_hwcf@7_3.t2", role = "activation"} : memref<1x3x6x6xf32, "dram"> to memref<1x3x36xf32, "dram">
    %linalg_pooling_nhwc_max_12_2_t1 = npu.view %linalg_pooling_nhwc_max {id = "linalg.pooling_nhwc_max@12_2.t1", role = "activation"} : memref<1x8x4x4xf32, "dram"> to memref<1x8x16xf32, "dram">
    %result = npu.view %linalg_pooling_nhwc_max_12_1 {id = "result", role = "activation"} : memref<1x2x2x8xf32, "dram"> to memref<1x2x2x8xf32, "dram">
    npu.copy ins(%x : memref<1x6x6x3xf32, "dram">) outs(%linalg_conv_2d_nhwc_hwcf : memref<1x3x6x6xf32, "dram">) {id = "linalg.conv_2d_nhwc_hwcf@7", dims = array<i64: 3, 36>, from = array<i64: 1, 3>, to = array<i64: 36, 1>}
    npu.copy ins(%w : memref<3x3x3x8xf32, "dram">) outs(%linalg_conv_2d_nhwc_hwcf_7 : memref<8x3x3x3xf32, "dram">) {id = "linalg.conv_2d_nhwc_hwcf@7_2", dims = array<i64: 8, 3, 9>, from = array<i64: 1, 8, 24>, to = array<i64: 27, 9, 1>}
    npu.copy ins(%linalg_conv_2d_nhwc_hwcf_7_3_t0 : memref<8x3x9xf32, "dram">) outs(%linalg_conv_2d_nhwc_hwcf_7_3_t1 : memref<9x3x8xf32, "dram">) {id = "linalg.conv_2d_nhwc_hwcf@7_3", dims = array<i64: 9, 3, 8>, from = array<i64: 1, 9, 27>, to = array<i64: 24, 8, 1>}
    npu.copy ins(%linalg_conv_2d_nhwc_hwcf_7_3_t2 : memref<1x3x36xf32, "dram">) outs(%linalg_conv_2d_nhwc_hwcf_7_3_t3 : memref<1x36x3xf32, "dram">) {id = "linalg.conv_2d_nhwc_hwcf@7_3.1", dims = array<i64: 36, 3>, from = array<i64: 1, 36>, to = array<i64: 3, 1>}
    npu.conv2d_t ins(%linalg_conv_2d_nhwc_hwcf_7_3_t3, %linalg_conv_2d_nhwc_hwcf_7_3_t1 : memref<1x36x3xf32, "dram">, memref<9x3x8xf32, "dram">) outs(%linalg_conv_2d_nhwc_hwcf_7_3_t4 : memref<1x16x8xf32, "dram">) {id = "linalg.conv_2d_nhwc_hwcf@7_3.2", batch = 1 : i64, h = 6 : i64, w = 6 : i64, kh = 3 : i64, kw = 3 : i64, sh = 1 : i64, sw = 1 : i64, dh = 1 : i64, dw = 1 : i64, pt = 0 : i64, pl = 0 : i64, pb = 0 : i64, pr = 0 : i64, cin = 3 : i64, cout = 8 : i64, groups = 1 : i64}
    npu.copy ins(%linalg_conv_2d_nhwc_hwcf_7_3_t4 : memref<1x16x8xf32, "dram">) outs(%linalg_conv_2d_nhwc_hwcf_7_1 : memref<1x8x4x4xf32, "dram">) {id = "linalg.conv_2d_nhwc_hwcf@7_3.3", dims = array<i64: 8, 16>, from = array<i64: 1, 8>, to = array<i64: 16, 1>}
    npu.copy ins(%linalg_conv_2d_nhwc_hwcf_7_1 : memref<1x8x4x4xf32, "dram">) outs(%linalg_conv_2d_nhwc_hwcf_7_2 : memref<1x4x4x8xf32, "dram">) {id = "linalg.conv_2d_nhwc_hwcf@7_4", dims = array<i64: 16, 8>, from = array<i64: 1, 16>, to = array<i64: 8, 1>}
    npu.copy ins(%linalg_conv_2d_nhwc_hwcf_7_2 : memref<1x4x4x8xf32, "dram">) outs(%linalg_pooling_nhwc_max : memref<1x8x4x4xf32, "dram">) {id = "linalg.pooling_nhwc_max@12", dims = array<i64: 8, 16>, from = array<i64: 1, 8>, to = array<i64: 16, 1>}
    npu.copy ins(%linalg_pooling_nhwc_max_12_2_t1 : memref<1x8x16xf32, "dram">) outs(%linalg_pooling_nhwc_max_12_2_t2 : memref<1x16x8xf32, "dram">) {id = "linalg.pooling_nhwc_max@12_2", dims = array<i64: 16, 8>, from = array<i64: 1, 16>, to = array<i64: 8, 1>}
    npu.pool ins(%linalg_pooling_nhwc_max_12_2_t2 : memref<1x16x8xf32, "dram">) outs(%linalg_pooling_nhwc_max_12_2_t0 : memref<1x4x8xf32, "dram">) {id = "linalg.pooling_nhwc_max@12_2.1", function = "MAX", batch = 1 : i64, h = 4 : i64, w = 4 : i64, kh = 2 : i64, kw = 2 : i64, sh = 2 : i64, sw = 2 : i64, dh = 1 : i64, dw = 1 : i64, pt = 0 : i64, pl = 0 : i64, pb = 0 : i64, pr = 0 : i64, channels = 8 : i64}
    npu.copy ins(%linalg_pooling_nhwc_max_12_2_t0 : memref<1x4x8xf32, "dram">) outs(%linalg_pooling_nhwc_max_12 : memref<1x8x2x2xf32, "dram">) {id = "linalg.pooling_nhwc_max@12_2.2", dims = array<i64: 8, 4>, from = array<i64: 1, 8>, to = array<i64: 4, 1>}
    npu.copy ins(%linalg_pooling_nhwc_max_12 : memref<1x8x2x2xf32, "dram">) outs(%linalg_pooling_nhwc_max_12_1 : memref<1x2x2x8xf32, "dram">) {id = "linalg.pooling_nhwc_max@12_3", dims = array<i64: 4, 8>, from = array<i64: 1, 4>, to = array<i64: 8, 1>}
    npu.return {order = ["x", "w", "linalg.conv_2d_nhwc_hwcf@7", "linalg.conv_2d_nhwc_hwcf@7_2", "linalg.conv_2d_nhwc_hwcf@7_3", "linalg.conv_2d_nhwc_hwcf@7_3.t0", "linalg.conv_2d_nhwc_hwcf@7_3.t1", "linalg.conv_2d_nhwc_hwcf@7_3.t2", "linalg.conv_2d_nhwc_hwcf@7_3.t3", "linalg.conv_2d_nhwc_hwcf@7_3.t4", "linalg.conv_2d_nhwc_hwcf@7_4", "linalg.pooling_nhwc_max@12", "linalg.pooling_nhwc_max@12_2", "linalg.pooling_nhwc_max@12_2.t0", "linalg.pooling_nhwc_max@12_2.t1", "linalg.pooling_nhwc_max@12_2.t2", "linalg.pooling_nhwc_max@12_3", "result"]} %result : memref<1x2x2x8xf32, "dram">
  }
}
