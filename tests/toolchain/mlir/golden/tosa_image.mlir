// A convolution with bias, ReLU, the average of an image.
func.func @main(%x: tensor<1x6x6x3xf32>, %w: tensor<8x3x3x3xf32>, %b: tensor<8xf32>) -> tensor<1x1x1x8xf32> {
  %c = "tosa.conv2d"(%x, %w, %b) {pad = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>, dilation = array<i64: 1, 1>} : (tensor<1x6x6x3xf32>, tensor<8x3x3x3xf32>, tensor<8xf32>) -> tensor<1x6x6x8xf32>
  %r = "tosa.clamp"(%c) {min_fp = 0.0 : f32, max_fp = 3.4e38 : f32, min_int = 0 : i64, max_int = 127 : i64} : (tensor<1x6x6x8xf32>) -> tensor<1x6x6x8xf32>
  %a = "tosa.avg_pool2d"(%r) {kernel = array<i64: 6, 6>, stride = array<i64: 6, 6>, pad = array<i64: 0, 0, 0, 0>} : (tensor<1x6x6x8xf32>) -> tensor<1x1x1x8xf32>
  return %a : tensor<1x1x1x8xf32>
}
