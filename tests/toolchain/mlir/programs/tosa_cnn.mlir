// A convolutional network: convolution, ReLU6, depthwise convolution, pooling, classifier, on tosa.
func.func @main(%x: tensor<1x16x16x3xf32>, %w0: tensor<8x3x3x3xf32>, %w1: tensor<3x3x8x1xf32>, %w2: tensor<10x8xf32>) -> tensor<1x10xf32> {
  %b0 = "tosa.const"() {value = dense<0.1> : tensor<8xf32>} : () -> tensor<8xf32>
  %b2 = "tosa.const"() {value = dense<0.0> : tensor<10xf32>} : () -> tensor<10xf32>
  %0 = "tosa.conv2d"(%x, %w0, %b0) {pad = array<i64: 1, 1, 1, 1>, stride = array<i64: 2, 2>, dilation = array<i64: 1, 1>} : (tensor<1x16x16x3xf32>, tensor<8x3x3x3xf32>, tensor<8xf32>) -> tensor<1x8x8x8xf32>
  %1 = "tosa.clamp"(%0) {min_fp = 0.0 : f32, max_fp = 6.0 : f32, min_int = 0 : i64, max_int = 6 : i64} : (tensor<1x8x8x8xf32>) -> tensor<1x8x8x8xf32>
  %2 = "tosa.depthwise_conv2d"(%1, %w1, %b0) {pad = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>, dilation = array<i64: 1, 1>} : (tensor<1x8x8x8xf32>, tensor<3x3x8x1xf32>, tensor<8xf32>) -> tensor<1x8x8x8xf32>
  %3 = "tosa.max_pool2d"(%2) {kernel = array<i64: 2, 2>, stride = array<i64: 2, 2>, pad = array<i64: 0, 0, 0, 0>} : (tensor<1x8x8x8xf32>) -> tensor<1x4x4x8xf32>
  %4 = "tosa.avg_pool2d"(%3) {kernel = array<i64: 4, 4>, stride = array<i64: 4, 4>, pad = array<i64: 0, 0, 0, 0>} : (tensor<1x4x4x8xf32>) -> tensor<1x1x1x8xf32>
  %5 = "tosa.reshape"(%4) {new_shape = array<i64: 1, 8>} : (tensor<1x1x1x8xf32>) -> tensor<1x8xf32>
  %6 = "tosa.fully_connected"(%5, %w2, %b2) : (tensor<1x8xf32>, tensor<10x8xf32>, tensor<10xf32>) -> tensor<1x10xf32>
  return %6 : tensor<1x10xf32>
}
