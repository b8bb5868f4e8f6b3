// Mean and variance of rows, then scale, on linalg.
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @main(%x: tensor<6x32xf32>) -> tensor<6x32xf32> {
  %zero = arith.constant 0.0 : f32
  %n = arith.constant 32.0 : f32
  %eps = arith.constant 1.0e-5 : f32
  %er = tensor.empty() : tensor<6xf32>
  %e = tensor.empty() : tensor<6x32xf32>
  %z = linalg.fill ins(%zero : f32) outs(%er : tensor<6xf32>) -> tensor<6xf32>
  %sum = linalg.reduce { arith.addf } ins(%x : tensor<6x32xf32>) outs(%z : tensor<6xf32>) dimensions = [1]
  %d = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %sum : tensor<6x32xf32>, tensor<6xf32>) outs(%e : tensor<6x32xf32>) {
  ^bb0(%a: f32, %s: f32, %out: f32):
    %mean = arith.divf %s, %n : f32
    %r = arith.subf %a, %mean : f32
    linalg.yield %r : f32
  } -> tensor<6x32xf32>
  %square = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%d : tensor<6x32xf32>) outs(%z : tensor<6xf32>) {
  ^bb0(%a: f32, %s: f32):
    %p = arith.mulf %a, %a : f32
    %r = arith.addf %p, %s : f32
    linalg.yield %r : f32
  } -> tensor<6xf32>
  %y = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%d, %square : tensor<6x32xf32>, tensor<6xf32>) outs(%e : tensor<6x32xf32>) {
  ^bb0(%a: f32, %s: f32, %out: f32):
    %v = arith.divf %s, %n : f32
    %w = arith.addf %v, %eps : f32
    %i = math.rsqrt %w : f32
    %r = arith.mulf %a, %i : f32
    linalg.yield %r : f32
  } -> tensor<6x32xf32>
  return %y : tensor<6x32xf32>
}
