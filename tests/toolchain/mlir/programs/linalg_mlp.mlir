// Two dense layers with ReLU, on linalg.
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
func.func @main(%x: tensor<4x32xf32>, %w0: tensor<32x64xf32>, %b0: tensor<64xf32>, %w1: tensor<64x10xf32>) -> tensor<4x10xf32> {
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<4x64xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<4x64xf32>) -> tensor<4x64xf32>
  %m0 = linalg.matmul ins(%x, %w0 : tensor<4x32xf32>, tensor<32x64xf32>) outs(%z0 : tensor<4x64xf32>) -> tensor<4x64xf32>
  %h = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%m0, %b0 : tensor<4x64xf32>, tensor<64xf32>) outs(%e0 : tensor<4x64xf32>) {
  ^bb0(%m: f32, %b: f32, %out: f32):
    %s = arith.addf %m, %b : f32
    %r = arith.maxf %s, %zero : f32
    linalg.yield %r : f32
  } -> tensor<4x64xf32>
  %e1 = tensor.empty() : tensor<4x10xf32>
  %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<4x10xf32>) -> tensor<4x10xf32>
  %y = linalg.matmul ins(%h, %w1 : tensor<4x64xf32>, tensor<64x10xf32>) outs(%z1 : tensor<4x10xf32>) -> tensor<4x10xf32>
  return %y : tensor<4x10xf32>
}
