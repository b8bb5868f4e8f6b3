builtin.module {
  func.func @main() attributes {npu.graph = "main"} {
    %x = npu.input {id = "x", role = "activation", index = 0 : i64} : memref<4x6xf32, "dram">
    %y = npu.input {id = "y", role = "activation", index = 1 : i64} : memref<2x2xf32, "dram">
    %tensor_extract_slice = npu.tensor {id = "tensor.extract_slice@4", role = "activation"} : memref<3x3xf32, "dram">
    %tensor_insert_slice = npu.tensor {id = "tensor.insert_slice@5", role = "activation"} : memref<2x3xf32, "dram">
    %tensor_insert_slice_5 = npu.tensor {id = "tensor.insert_slice@5_2", role = "activation"} : memref<1x3xf32, "dram">
    %tensor_insert_slice_5_1 = npu.tensor {id = "tensor.insert_slice@5_3", role = "activation"} : memref<2x2xf32, "dram">
    %tensor_insert_slice_5_2 = npu.tensor {id = "tensor.insert_slice@5_4", role = "activation"} : memref<2x1xf32, "dram">
    %tensor_insert_slice_5_3 = npu.tensor {id = "tensor.insert_slice@5_5", role = "activation"} : memref<2x3xf32, "dram">
    %tensor_insert_slice_5_4 = npu.tensor {id = "tensor.insert_slice@5_6", role = "activation"} : memref<3x3xf32, "dram">
    %tensor_pad = npu.tensor {id = "tensor.pad@6", role = "activation"} : memref<4x6xf32, "dram">
    %tensor_pad_6_t0 = npu.constant {id = "tensor.pad@6.t0", role = "weight", value = dense<0.000000e+00> : tensor<6xf32>} : memref<6xf32, "dram">
    %linalg_transpose = npu.tensor {id = "linalg.transpose@11", role = "activation"} : memref<6x4xf32, "dram">
    %result = npu.view %linalg_transpose {id = "result", role = "activation"} : memref<6x4xf32, "dram"> to memref<12x2xf32, "dram">
    npu.copy ins(%x : memref<4x6xf32, "dram">) outs(%tensor_extract_slice : memref<3x3xf32, "dram">) {id = "tensor.extract_slice@4", dims = array<i64: 9>, from = array<i64: 2>, to = array<i64: 1>, at_in = 6 : i64}
    npu.copy ins(%tensor_extract_slice : memref<3x3xf32, "dram">) outs(%tensor_insert_slice : memref<2x3xf32, "dram">) {id = "tensor.insert_slice@5", dims = array<i64: 6>, from = array<i64: 1>, to = array<i64: 1>, at_in = 3 : i64}
    npu.copy ins(%tensor_extract_slice : memref<3x3xf32, "dram">) outs(%tensor_insert_slice_5 : memref<1x3xf32, "dram">) {id = "tensor.insert_slice@5_2", dims = array<i64: 3>, from = array<i64: 1>, to = array<i64: 1>}
    npu.copy ins(%tensor_insert_slice : memref<2x3xf32, "dram">) outs(%tensor_insert_slice_5_1 : memref<2x2xf32, "dram">) {id = "tensor.insert_slice@5_3", dims = array<i64: 2, 2>, from = array<i64: 3, 1>, to = array<i64: 2, 1>}
    npu.copy ins(%tensor_insert_slice : memref<2x3xf32, "dram">) outs(%tensor_insert_slice_5_2 : memref<2x1xf32, "dram">) {id = "tensor.insert_slice@5_4", dims = array<i64: 2>, from = array<i64: 3>, to = array<i64: 1>, at_in = 2 : i64}
    npu.copy ins(%y : memref<2x2xf32, "dram">) outs(%tensor_insert_slice_5_3 : memref<2x3xf32, "dram">) {id = "tensor.insert_slice@5_5", dims = array<i64: 2, 2>, from = array<i64: 2, 1>, to = array<i64: 3, 1>}
    npu.copy ins(%tensor_insert_slice_5_2 : memref<2x1xf32, "dram">) outs(%tensor_insert_slice_5_3 : memref<2x3xf32, "dram">) {id = "tensor.insert_slice@5_5.1", dims = array<i64: 2>, from = array<i64: 1>, to = array<i64: 3>, at_out = 2 : i64}
    npu.copy ins(%tensor_insert_slice_5 : memref<1x3xf32, "dram">) outs(%tensor_insert_slice_5_4 : memref<3x3xf32, "dram">) {id = "tensor.insert_slice@5_6", dims = array<i64: 3>, from = array<i64: 1>, to = array<i64: 1>}
    npu.copy ins(%tensor_insert_slice_5_3 : memref<2x3xf32, "dram">) outs(%tensor_insert_slice_5_4 : memref<3x3xf32, "dram">) {id = "tensor.insert_slice@5_6.1", dims = array<i64: 6>, from = array<i64: 1>, to = array<i64: 1>, at_out = 3 : i64}
    npu.copy ins(%tensor_pad_6_t0 : memref<6xf32, "dram">) outs(%tensor_pad : memref<4x6xf32, "dram">) {id = "tensor.pad@6", dims = array<i64: 4, 6>, from = array<i64: 0, 1>, to = array<i64: 6, 1>}
    npu.copy ins(%tensor_insert_slice_5_4 : memref<3x3xf32, "dram">) outs(%tensor_pad : memref<4x6xf32, "dram">) {id = "tensor.pad@6.1", dims = array<i64: 3, 3>, from = array<i64: 3, 1>, to = array<i64: 6, 1>, at_out = 1 : i64}
    npu.copy ins(%tensor_pad : memref<4x6xf32, "dram">) outs(%linalg_transpose : memref<6x4xf32, "dram">) {id = "linalg.transpose@11", dims = array<i64: 6, 4>, from = array<i64: 1, 6>, to = array<i64: 4, 1>}
    npu.return {order = ["x", "y", "tensor.extract_slice@4", "tensor.insert_slice@5", "tensor.insert_slice@5_2", "tensor.insert_slice@5_3", "tensor.insert_slice@5_4", "tensor.insert_slice@5_5", "tensor.insert_slice@5_6", "tensor.pad@6", "tensor.pad@6.t0", "linalg.transpose@11", "result"]} %result : memref<12x2xf32, "dram">
  }
}
