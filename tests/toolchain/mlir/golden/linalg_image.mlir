// A convolution and the maximum of windows, in the layout of linalg.
func.func @main(%x: tensor<1x6x6x3xf32>, %w: tensor<3x3x3x8xf32>) -> tensor<1x2x2x8xf32> {
  %zero = arith.constant 0.0 : f32
  %lowest = arith.constant 0xFF800000 : f32
  %e = tensor.empty() : tensor<1x4x4x8xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  %c = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
      ins(%x, %w : tensor<1x6x6x3xf32>, tensor<3x3x3x8xf32>) outs(%z : tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  %k = tensor.empty() : tensor<2x2xf32>
  %ep = tensor.empty() : tensor<1x2x2x8xf32>
  %zp = linalg.fill ins(%lowest : f32) outs(%ep : tensor<1x2x2x8xf32>) -> tensor<1x2x2x8xf32>
  %p = linalg.pooling_nhwc_max {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>}
      ins(%c, %k : tensor<1x4x4x8xf32>, tensor<2x2xf32>) outs(%zp : tensor<1x2x2x8xf32>) -> tensor<1x2x2x8xf32>
  return %p : tensor<1x2x2x8xf32>
}
