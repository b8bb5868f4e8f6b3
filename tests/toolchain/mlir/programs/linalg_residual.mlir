// Convolution, max pooling, and a residual block of two convolutions, on linalg.
func.func @main(%x: tensor<1x12x12x3xf32>, %w0: tensor<3x3x3x8xf32>, %w1: tensor<3x3x8x8xf32>) -> tensor<1x5x5x8xf32> {
  %zero = arith.constant 0.0 : f32
  %lowest = arith.constant 0xFF800000 : f32
  %e0 = tensor.empty() : tensor<1x10x10x8xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<1x10x10x8xf32>) -> tensor<1x10x10x8xf32>
  %c0 = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
      ins(%x, %w0 : tensor<1x12x12x3xf32>, tensor<3x3x3x8xf32>) outs(%z0 : tensor<1x10x10x8xf32>) -> tensor<1x10x10x8xf32>
  %k = tensor.empty() : tensor<2x2xf32>
  %e1 = tensor.empty() : tensor<1x5x5x8xf32>
  %z1 = linalg.fill ins(%lowest : f32) outs(%e1 : tensor<1x5x5x8xf32>) -> tensor<1x5x5x8xf32>
  %p = linalg.pooling_nhwc_max {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>}
      ins(%c0, %k : tensor<1x10x10x8xf32>, tensor<2x2xf32>) outs(%z1 : tensor<1x5x5x8xf32>) -> tensor<1x5x5x8xf32>
  %padded = tensor.pad %p low[0, 1, 1, 0] high[0, 1, 1, 0] {
  ^bb0(%i: index, %j: index, %l: index, %m: index):
    tensor.yield %zero : f32
  } : tensor<1x5x5x8xf32> to tensor<1x7x7x8xf32>
  %c1 = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
      ins(%padded, %w1 : tensor<1x7x7x8xf32>, tensor<3x3x8x8xf32>) outs(%p : tensor<1x5x5x8xf32>) -> tensor<1x5x5x8xf32>
  %y = linalg.map ins(%c1 : tensor<1x5x5x8xf32>) outs(%e1 : tensor<1x5x5x8xf32>)
    (%in: f32) {
      %r = arith.maxf %in, %zero : f32
      linalg.yield %r : f32
    }
  return %y : tensor<1x5x5x8xf32>
}
