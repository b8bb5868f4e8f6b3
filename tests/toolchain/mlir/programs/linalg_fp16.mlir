// A product of halves into single precision, and its exponential, on linalg.
func.func @main(%x: tensor<8x32xf16>, %w: tensor<32x16xf16>) -> tensor<8x16xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x16xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  %m = linalg.matmul ins(%x, %w : tensor<8x32xf16>, tensor<32x16xf16>) outs(%z : tensor<8x16xf32>) -> tensor<8x16xf32>
  %y = linalg.map { math.exp } ins(%m : tensor<8x16xf32>) outs(%e : tensor<8x16xf32>)
  return %y : tensor<8x16xf32>
}
