// Weights as a resource, arithmetic on whole tensors, reshapes and slices.
func.func @main(%x: tensor<2x4xf32>) -> tensor<2x2xf32> {
  %w = arith.constant dense_resource<weights> : tensor<4x4xf32>
  %c = arith.constant dense<0.5> : tensor<2x4xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x4xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x4xf32>) -> tensor<2x4xf32>
  %m = linalg.matmul ins(%x, %w : tensor<2x4xf32>, tensor<4x4xf32>) outs(%z : tensor<2x4xf32>) -> tensor<2x4xf32>
  %a = arith.addf %m, %c : tensor<2x4xf32>
  %t = math.tanh %a : tensor<2x4xf32>
  %flat = tensor.collapse_shape %t [[0, 1]] : tensor<2x4xf32> into tensor<8xf32>
  %back = tensor.expand_shape %flat [[0, 1]] : tensor<8xf32> into tensor<4x2xf32>
  %s = tensor.extract_slice %back[1, 0] [2, 2] [1, 1] : tensor<4x2xf32> to tensor<2x2xf32>
  return %s : tensor<2x2xf32>
}

{-# dialect_resources: { builtin: { weights: "0x040000000000803F00000040000040400000804000000000000080BF0000003F0000003E0000803F0000803F0000803F0000803F00000041000000C10000803E000080BE" } } #-}
