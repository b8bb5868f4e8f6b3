// A transformer encoder block of one head: attention, residual, normalization, feed forward, on tosa.
func.func @main(%x: tensor<1x8x16xf32>, %wq: tensor<1x16x16xf32>, %wk: tensor<1x16x16xf32>, %wv: tensor<1x16x16xf32>, %w0: tensor<1x16x32xf32>, %w1: tensor<1x32x16xf32>) -> tensor<1x8x16xf32> {
  %scale = "tosa.const"() {value = dense<0.25> : tensor<1x1x1xf32>} : () -> tensor<1x1x1xf32>
  %inverse = "tosa.const"() {value = dense<0.0625> : tensor<1x1x1xf32>} : () -> tensor<1x1x1xf32>
  %eps = "tosa.const"() {value = dense<1.0e-5> : tensor<1x1x1xf32>} : () -> tensor<1x1x1xf32>
  %perms = "tosa.const"() {value = dense<[0, 2, 1]> : tensor<3xi32>} : () -> tensor<3xi32>
  %q = "tosa.matmul"(%x, %wq) : (tensor<1x8x16xf32>, tensor<1x16x16xf32>) -> tensor<1x8x16xf32>
  %k = "tosa.matmul"(%x, %wk) : (tensor<1x8x16xf32>, tensor<1x16x16xf32>) -> tensor<1x8x16xf32>
  %v = "tosa.matmul"(%x, %wv) : (tensor<1x8x16xf32>, tensor<1x16x16xf32>) -> tensor<1x8x16xf32>
  %kt = "tosa.transpose"(%k, %perms) : (tensor<1x8x16xf32>, tensor<3xi32>) -> tensor<1x16x8xf32>
  %s = "tosa.matmul"(%q, %kt) : (tensor<1x8x16xf32>, tensor<1x16x8xf32>) -> tensor<1x8x8xf32>
  %t = "tosa.mul"(%s, %scale) {shift = 0 : i32} : (tensor<1x8x8xf32>, tensor<1x1x1xf32>) -> tensor<1x8x8xf32>
  %m = "tosa.reduce_max"(%t) {axis = 2 : i64} : (tensor<1x8x8xf32>) -> tensor<1x8x1xf32>
  %d = "tosa.sub"(%t, %m) : (tensor<1x8x8xf32>, tensor<1x8x1xf32>) -> tensor<1x8x8xf32>
  %e = "tosa.exp"(%d) : (tensor<1x8x8xf32>) -> tensor<1x8x8xf32>
  %z = "tosa.reduce_sum"(%e) {axis = 2 : i64} : (tensor<1x8x8xf32>) -> tensor<1x8x1xf32>
  %r = "tosa.reciprocal"(%z) : (tensor<1x8x1xf32>) -> tensor<1x8x1xf32>
  %p = "tosa.mul"(%e, %r) {shift = 0 : i32} : (tensor<1x8x8xf32>, tensor<1x8x1xf32>) -> tensor<1x8x8xf32>
  %a = "tosa.matmul"(%p, %v) : (tensor<1x8x8xf32>, tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  %h = "tosa.add"(%x, %a) : (tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  %sum = "tosa.reduce_sum"(%h) {axis = 2 : i64} : (tensor<1x8x16xf32>) -> tensor<1x8x1xf32>
  %mean = "tosa.mul"(%sum, %inverse) {shift = 0 : i32} : (tensor<1x8x1xf32>, tensor<1x1x1xf32>) -> tensor<1x8x1xf32>
  %c = "tosa.sub"(%h, %mean) : (tensor<1x8x16xf32>, tensor<1x8x1xf32>) -> tensor<1x8x16xf32>
  %c2 = "tosa.mul"(%c, %c) {shift = 0 : i32} : (tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  %vs = "tosa.reduce_sum"(%c2) {axis = 2 : i64} : (tensor<1x8x16xf32>) -> tensor<1x8x1xf32>
  %var = "tosa.mul"(%vs, %inverse) {shift = 0 : i32} : (tensor<1x8x1xf32>, tensor<1x1x1xf32>) -> tensor<1x8x1xf32>
  %ve = "tosa.add"(%var, %eps) : (tensor<1x8x1xf32>, tensor<1x1x1xf32>) -> tensor<1x8x1xf32>
  %rs = "tosa.rsqrt"(%ve) : (tensor<1x8x1xf32>) -> tensor<1x8x1xf32>
  %n = "tosa.mul"(%c, %rs) {shift = 0 : i32} : (tensor<1x8x16xf32>, tensor<1x8x1xf32>) -> tensor<1x8x16xf32>
  %f0 = "tosa.matmul"(%n, %w0) : (tensor<1x8x16xf32>, tensor<1x16x32xf32>) -> tensor<1x8x32xf32>
  %f1 = "tosa.clamp"(%f0) {min_fp = 0.0 : f32, max_fp = 3.4e38 : f32, min_int = 0 : i64, max_int = 127 : i64} : (tensor<1x8x32xf32>) -> tensor<1x8x32xf32>
  %f2 = "tosa.matmul"(%f1, %w1) : (tensor<1x8x32xf32>, tensor<1x32x16xf32>) -> tensor<1x8x16xf32>
  %y = "tosa.add"(%n, %f2) : (tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
  return %y : tensor<1x8x16xf32>
}
