// A product of bytes, rescaled to bytes: by a product of floats alone, whose results are right for every sum.
func.func @main(%x: tensor<4x8xi8>, %w: tensor<16x8xi8>, %b: tensor<16xi32>) -> tensor<4x16xi8> {
  %m = "tosa.fully_connected"(%x, %w, %b) {quantization_info = #tosa.conv_quant<input_zp = 1, weight_zp = 0>} : (tensor<4x8xi8>, tensor<16x8xi8>, tensor<16xi32>) -> tensor<4x16xi32>
  %r = "tosa.rescale"(%m) {double_round = false, input_zp = 0 : i32, output_zp = 3 : i32, multiplier = array<i32: 1073741824>, shift = array<i32: 37>, per_channel = false, scale32 = true} : (tensor<4x16xi32>) -> tensor<4x16xi8>
  return %r : tensor<4x16xi8>
}
