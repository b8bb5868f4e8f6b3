// What moves elements: slices, padding, a transpose, a reshape that moves none.
func.func @main(%x: tensor<4x6xf32>, %y: tensor<2x2xf32>) -> tensor<12x2xf32> {
  %zero = arith.constant 0.0 : f32
  %s = tensor.extract_slice %x[1, 0] [3, 3] [1, 2] : tensor<4x6xf32> to tensor<3x3xf32>
  %i = tensor.insert_slice %y into %s[1, 0] [2, 2] [1, 1] : tensor<2x2xf32> into tensor<3x3xf32>
  %p = tensor.pad %i low[0, 1] high[1, 2] {
  ^bb0(%a: index, %b: index):
    tensor.yield %zero : f32
  } : tensor<3x3xf32> to tensor<4x6xf32>
  %e = tensor.empty() : tensor<6x4xf32>
  %t = linalg.transpose ins(%p : tensor<4x6xf32>) outs(%e : tensor<6x4xf32>) permutation = [1, 0]
  %c = tensor.collapse_shape %t [[0, 1]] : tensor<6x4xf32> into tensor<24xf32>
  %r = tensor.expand_shape %c [[0, 1]] : tensor<24xf32> into tensor<12x2xf32>
  return %r : tensor<12x2xf32>
}
