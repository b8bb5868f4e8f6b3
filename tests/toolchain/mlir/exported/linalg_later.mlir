#a = affine_map<(d0, d1, d2) -> (d0, d2)>
#b = affine_map<(d0, d1, d2) -> (d1, d2)>
#c = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @main(%x: tensor<4x8xf32>, %w: tensor<6x8xf32>, %i: tensor<1x2x3x5x5xf32>, %k: tensor<2x4x3x3x3xf32>) -> (tensor<4x6xf32>, tensor<1x2x4x3x3xf32>, tensor<4x6xf32>) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %m = linalg.matmul indexing_maps = [#a, #b, #c] ins(%x, %w : tensor<4x8xf32>, tensor<6x8xf32>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
  %n = linalg.contract indexing_maps = [#a, #b, #c] ins(%x, %w : tensor<4x8xf32>, tensor<6x8xf32>) outs(%m : tensor<4x6xf32>) -> tensor<4x6xf32>
  %s = linalg.softmax dimension(1) ins(%n : tensor<4x6xf32>) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %eg = tensor.empty() : tensor<1x2x4x3x3xf32>
  %zg = linalg.fill ins(%z : f32) outs(%eg : tensor<1x2x4x3x3xf32>) -> tensor<1x2x4x3x3xf32>
  %g = linalg.conv_2d_ngchw_gfchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%i, %k : tensor<1x2x3x5x5xf32>, tensor<2x4x3x3x3xf32>) outs(%zg : tensor<1x2x4x3x3xf32>) -> tensor<1x2x4x3x3xf32>
  return %n, %g, %s : tensor<4x6xf32>, tensor<1x2x4x3x3xf32>, tensor<4x6xf32>
}
