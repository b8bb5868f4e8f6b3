// A product of bytes into 32 bits with zero points in the body, and its largest rows, on linalg.
#a = affine_map<(d0, d1, d2) -> (d0, d2)>
#b = affine_map<(d0, d1, d2) -> (d1, d2)>
#c = affine_map<(d0, d1, d2) -> (d0, d1)>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @main(%x: tensor<8x32xi8>, %w: tensor<16x32xi8>) -> (tensor<8x16xi32>, tensor<8xi32>) {
  %zero = arith.constant 0 : i32
  %lowest = arith.constant -2147483648 : i32
  %e = tensor.empty() : tensor<8x16xi32>
  %z = linalg.fill ins(%zero : i32) outs(%e : tensor<8x16xi32>) -> tensor<8x16xi32>
  %y = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<8x32xi8>, tensor<16x32xi8>) outs(%z : tensor<8x16xi32>) {
  ^bb0(%l: i8, %r: i8, %s: i32):
    %le = arith.extsi %l : i8 to i32
    %re = arith.extsi %r : i8 to i32
    %p = arith.muli %le, %re : i32
    %t = arith.addi %s, %p : i32
    linalg.yield %t : i32
  } -> tensor<8x16xi32>
  %er = tensor.empty() : tensor<8xi32>
  %zr = linalg.fill ins(%lowest : i32) outs(%er : tensor<8xi32>) -> tensor<8xi32>
  %m = linalg.reduce { arith.maxsi } ins(%y : tensor<8x16xi32>) outs(%zr : tensor<8xi32>) dimensions = [1]
  return %y, %m : tensor<8x16xi32>, tensor<8xi32>
}
