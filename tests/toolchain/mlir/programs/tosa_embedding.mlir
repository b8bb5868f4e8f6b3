// Rows of a table by indices, their sum with positions, and the largest column, on tosa.
func.func @main(%ids: tensor<1x6xi32>, %table: tensor<1x20x8xf32>, %positions: tensor<1x6x8xf32>) -> tensor<1x6xi32> {
  %0 = "tosa.gather"(%table, %ids) : (tensor<1x20x8xf32>, tensor<1x6xi32>) -> tensor<1x6x8xf32>
  %1 = "tosa.add"(%0, %positions) : (tensor<1x6x8xf32>, tensor<1x6x8xf32>) -> tensor<1x6x8xf32>
  %2 = "tosa.tanh"(%1) : (tensor<1x6x8xf32>) -> tensor<1x6x8xf32>
  %3 = "tosa.argmax"(%2) {axis = 2 : i64} : (tensor<1x6x8xf32>) -> tensor<1x6xi32>
  return %3 : tensor<1x6xi32>
}
