// A gated unit with concatenation, slices, padding and a selection, on tosa.
func.func @main(%x: tensor<4x8xf32>, %h: tensor<4x8xf32>, %w: tensor<1x16x16xf32>) -> tensor<4x10xf32> {
  %0 = "tosa.concat"(%x, %h) {axis = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x16xf32>
  %1 = "tosa.reshape"(%0) {new_shape = array<i64: 1, 4, 16>} : (tensor<4x16xf32>) -> tensor<1x4x16xf32>
  %2 = "tosa.matmul"(%1, %w) : (tensor<1x4x16xf32>, tensor<1x16x16xf32>) -> tensor<1x4x16xf32>
  %3 = "tosa.reshape"(%2) {new_shape = array<i64: 4, 16>} : (tensor<1x4x16xf32>) -> tensor<4x16xf32>
  %4 = "tosa.slice"(%3) {start = array<i64: 0, 0>, size = array<i64: 4, 8>} : (tensor<4x16xf32>) -> tensor<4x8xf32>
  %5 = "tosa.slice"(%3) {start = array<i64: 0, 8>, size = array<i64: 4, 8>} : (tensor<4x16xf32>) -> tensor<4x8xf32>
  %6 = "tosa.sigmoid"(%4) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %7 = "tosa.tanh"(%5) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %8 = "tosa.mul"(%6, %7) {shift = 0 : i32} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %9 = "tosa.greater"(%8, %h) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xi1>
  %10 = "tosa.select"(%9, %8, %h) : (tensor<4x8xi1>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %11 = "tosa.const"() {value = dense<[[0, 0], [1, 1]]> : tensor<2x2xi32>} : () -> tensor<2x2xi32>
  %12 = "tosa.pad"(%10, %11) : (tensor<4x8xf32>, tensor<2x2xi32>) -> tensor<4x10xf32>
  return %12 : tensor<4x10xf32>
}
