#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map3 = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
#map4 = affine_map<(d0, d1, d2) -> (d2)>
module attributes {torch.debug_module_name = "Embed"} {
  ml_program.global private mutable @global_seed(dense<0> : tensor<i64>) : tensor<i64>
  func.func @forward(%ids: tensor<1x4xi64>, %w: tensor<32x16xf32>, %g: tensor<16xf32>, %b: tensor<16xf32>) -> tensor<1x4x16xf32> {
    %cst = arith.constant 0.000000e+00 : f32
    %cst_0 = arith.constant 1.600000e+01 : f32
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64
    %c32_i64 = arith.constant 32 : i64
    %c0_i64 = arith.constant 0 : i64
    %0 = tensor.empty() : tensor<1x4x16xf32>
    %1 = linalg.generic {indexing_maps = [#map1, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%ids : tensor<1x4xi64>) outs(%0 : tensor<1x4x16xf32>) {
    ^bb0(%in: i64, %out: f32):
      %20 = arith.index_cast %in : i64 to index
      %21 = linalg.index 2 : index
      %22 = arith.cmpi slt, %in, %c32_i64 : i64
      cf.assert %22, "index must be smaller than dim size"
      %23 = arith.cmpi sge, %in, %c0_i64 : i64
      cf.assert %23, "index must be larger or equal to 0"
      %extracted = tensor.extract %w[%20, %21] : tensor<32x16xf32>
      linalg.yield %extracted : f32
    } -> tensor<1x4x16xf32>
    %2 = tensor.empty() : tensor<1x4x1xf32>
    %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<1x4x1xf32>) -> tensor<1x4x1xf32>
    %4 = linalg.generic {indexing_maps = [#map2, #map3], iterator_types = ["parallel", "parallel", "reduction"]} ins(%1 : tensor<1x4x16xf32>) outs(%3 : tensor<1x4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %20 = arith.addf %in, %out : f32
      linalg.yield %20 : f32
    } -> tensor<1x4x1xf32>
    %5 = linalg.generic {indexing_maps = [#map3, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%4 : tensor<1x4x1xf32>) outs(%2 : tensor<1x4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %20 = arith.divf %in, %cst_0 : f32
      linalg.yield %20 : f32
    } -> tensor<1x4x1xf32>
    %6 = linalg.generic {indexing_maps = [#map2, #map3, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%1, %5 : tensor<1x4x16xf32>, tensor<1x4x1xf32>) outs(%0 : tensor<1x4x16xf32>) {
    ^bb0(%in: f32, %in_2: f32, %out: f32):
      %20 = arith.subf %in, %in_2 : f32
      linalg.yield %20 : f32
    } -> tensor<1x4x16xf32>
    %7 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%6, %6 : tensor<1x4x16xf32>, tensor<1x4x16xf32>) outs(%0 : tensor<1x4x16xf32>) {
    ^bb0(%in: f32, %in_2: f32, %out: f32):
      %20 = arith.mulf %in, %in_2 : f32
      linalg.yield %20 : f32
    } -> tensor<1x4x16xf32>
    %8 = linalg.generic {indexing_maps = [#map2, #map3], iterator_types = ["parallel", "parallel", "reduction"]} ins(%7 : tensor<1x4x16xf32>) outs(%3 : tensor<1x4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %20 = arith.addf %in, %out : f32
      linalg.yield %20 : f32
    } -> tensor<1x4x1xf32>
    %9 = linalg.generic {indexing_maps = [#map3, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%8 : tensor<1x4x1xf32>) outs(%2 : tensor<1x4x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %20 = arith.divf %in, %cst_0 : f32
      %21 = arith.truncf %cst_1 : f64 to f32
      %22 = arith.addf %20, %21 : f32
      %23 = math.rsqrt %22 : f32
      linalg.yield %23 : f32
    } -> tensor<1x4x1xf32>
    %10 = linalg.generic {indexing_maps = [#map2, #map3, #map4, #map4, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%6, %9, %g, %b : tensor<1x4x16xf32>, tensor<1x4x1xf32>, tensor<16xf32>, tensor<16xf32>) outs(%0 : tensor<1x4x16xf32>) {
    ^bb0(%in: f32, %in_2: f32, %in_3: f32, %in_4: f32, %out: f32):
      %20 = arith.mulf %in, %in_2 : f32
      %21 = arith.mulf %20, %in_3 : f32
      %22 = arith.addf %21, %in_4 : f32
      linalg.yield %22 : f32
    } -> tensor<1x4x16xf32>
    return %10 : tensor<1x4x16xf32>
  }
}
