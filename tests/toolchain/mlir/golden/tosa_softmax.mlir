// A softmax as exporters write it: maximum, difference, exponentials, sum, reciprocal.
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %m = "tosa.reduce_max"(%x) {axis = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %d = "tosa.sub"(%x, %m) : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %e = "tosa.exp"(%d) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = "tosa.reduce_sum"(%e) {axis = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %r = "tosa.reciprocal"(%s) : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %y = "tosa.mul"(%e, %r) {shift = 0 : i32} : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
