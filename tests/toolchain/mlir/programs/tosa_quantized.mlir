// A quantized network of bytes: convolution with scales per channel, ReLU, residual, average, classifier, on tosa.
func.func @main(%x: tensor<1x8x8x4xi8>, %w0: tensor<4x3x3x4xi8>, %w1: tensor<6x4xi8>) -> tensor<1x6xi8> {
  %b0 = "tosa.const"() {value = dense<[100, -200, 300, 0]> : tensor<4xi32>} : () -> tensor<4xi32>
  %b1 = "tosa.const"() {value = dense<7> : tensor<6xi32>} : () -> tensor<6xi32>
  %0 = "tosa.conv2d"(%x, %w0, %b0) {pad = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>, dilation = array<i64: 1, 1>, quantization_info = #tosa.conv_quant<input_zp = -3, weight_zp = 0>} : (tensor<1x8x8x4xi8>, tensor<4x3x3x4xi8>, tensor<4xi32>) -> tensor<1x8x8x4xi32>
  %1 = "tosa.rescale"(%0) {double_round = true, input_zp = 0 : i32, output_zp = -3 : i32, multiplier = array<i32: 1543210987, 1276543210, 1100000000, 2000000001>, shift = array<i32: 41, 41, 40, 42>, per_channel = true, scale32 = true} : (tensor<1x8x8x4xi32>) -> tensor<1x8x8x4xi8>
  %2 = "tosa.clamp"(%1) {min_fp = 0.0 : f32, max_fp = 0.0 : f32, min_int = -3 : i64, max_int = 127 : i64} : (tensor<1x8x8x4xi8>) -> tensor<1x8x8x4xi8>
  %3 = "tosa.rescale"(%2) {double_round = true, input_zp = -3 : i32, output_zp = 0 : i32, multiplier = array<i32: 1073741824>, shift = array<i32: 10>, per_channel = false, scale32 = true} : (tensor<1x8x8x4xi8>) -> tensor<1x8x8x4xi32>
  %4 = "tosa.rescale"(%x) {double_round = true, input_zp = -3 : i32, output_zp = 0 : i32, multiplier = array<i32: 1343210981>, shift = array<i32: 11>, per_channel = false, scale32 = true} : (tensor<1x8x8x4xi8>) -> tensor<1x8x8x4xi32>
  %5 = "tosa.add"(%3, %4) : (tensor<1x8x8x4xi32>, tensor<1x8x8x4xi32>) -> tensor<1x8x8x4xi32>
  %6 = "tosa.rescale"(%5) {double_round = true, input_zp = 0 : i32, output_zp = 4 : i32, multiplier = array<i32: 1243210983>, shift = array<i32: 50>, per_channel = false, scale32 = true} : (tensor<1x8x8x4xi32>) -> tensor<1x8x8x4xi8>
  %7 = "tosa.avg_pool2d"(%6) {kernel = array<i64: 8, 8>, stride = array<i64: 8, 8>, pad = array<i64: 0, 0, 0, 0>, quantization_info = #tosa.unary_quant<input_zp = 4, output_zp = 4>} : (tensor<1x8x8x4xi8>) -> tensor<1x1x1x4xi8>
  %8 = "tosa.reshape"(%7) {new_shape = array<i64: 1, 4>} : (tensor<1x1x1x4xi8>) -> tensor<1x4xi8>
  %9 = "tosa.fully_connected"(%8, %w1, %b1) {quantization_info = #tosa.conv_quant<input_zp = 4, weight_zp = 0>} : (tensor<1x4xi8>, tensor<6x4xi8>, tensor<6xi32>) -> tensor<1x6xi32>
  %10 = "tosa.rescale"(%9) {double_round = true, input_zp = 0 : i32, output_zp = 0 : i32, multiplier = array<i32: 1643210989>, shift = array<i32: 38>, per_channel = false, scale32 = true} : (tensor<1x6xi32>) -> tensor<1x6xi8>
  return %10 : tensor<1x6xi8>
}
