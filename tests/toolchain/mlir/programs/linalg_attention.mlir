// Attention of two heads: softmax(Q K' / sqrt(d)) V, on linalg.
#full = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#row = affine_map<(d0, d1, d2) -> (d0, d1)>
#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#k = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
#s = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
func.func @main(%query: tensor<2x8x16xf32>, %key: tensor<2x8x16xf32>, %value: tensor<2x8x16xf32>) -> tensor<2x8x16xf32> {
  %zero = arith.constant 0.0 : f32
  %lowest = arith.constant 0xFF800000 : f32
  %scale = arith.constant 0.25 : f32
  %es = tensor.empty() : tensor<2x8x8xf32>
  %er = tensor.empty() : tensor<2x8xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %scores = linalg.generic {indexing_maps = [#q, #k, #s], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%query, %key : tensor<2x8x16xf32>, tensor<2x8x16xf32>) outs(%zs : tensor<2x8x8xf32>) {
  ^bb0(%a: f32, %b: f32, %sum: f32):
    %p = arith.mulf %a, %b : f32
    %t = arith.addf %sum, %p : f32
    linalg.yield %t : f32
  } -> tensor<2x8x8xf32>
  %scaled = linalg.generic {indexing_maps = [#full, #full], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%scores : tensor<2x8x8xf32>) outs(%es : tensor<2x8x8xf32>) {
  ^bb0(%a: f32, %out: f32):
    %p = arith.mulf %a, %scale : f32
    linalg.yield %p : f32
  } -> tensor<2x8x8xf32>
  %zm = linalg.fill ins(%lowest : f32) outs(%er : tensor<2x8xf32>) -> tensor<2x8xf32>
  %max = linalg.reduce { arith.maxf } ins(%scaled : tensor<2x8x8xf32>) outs(%zm : tensor<2x8xf32>) dimensions = [2]
  %exp = linalg.generic {indexing_maps = [#full, #row, #full], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%scaled, %max : tensor<2x8x8xf32>, tensor<2x8xf32>) outs(%es : tensor<2x8x8xf32>) {
  ^bb0(%a: f32, %m: f32, %out: f32):
    %d = arith.subf %a, %m : f32
    %p = math.exp %d : f32
    linalg.yield %p : f32
  } -> tensor<2x8x8xf32>
  %zd = linalg.fill ins(%zero : f32) outs(%er : tensor<2x8xf32>) -> tensor<2x8xf32>
  %total = linalg.reduce { arith.addf } ins(%exp : tensor<2x8x8xf32>) outs(%zd : tensor<2x8xf32>) dimensions = [2]
  %weights = linalg.generic {indexing_maps = [#full, #row, #full], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%exp, %total : tensor<2x8x8xf32>, tensor<2x8xf32>) outs(%es : tensor<2x8x8xf32>) {
  ^bb0(%a: f32, %t: f32, %out: f32):
    %p = arith.divf %a, %t : f32
    linalg.yield %p : f32
  } -> tensor<2x8x8xf32>
  %eo = tensor.empty() : tensor<2x8x16xf32>
  %zo = linalg.fill ins(%zero : f32) outs(%eo : tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %y = linalg.batch_matmul ins(%weights, %value : tensor<2x8x8xf32>, tensor<2x8x16xf32>) outs(%zo : tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return %y : tensor<2x8x16xf32>
}
