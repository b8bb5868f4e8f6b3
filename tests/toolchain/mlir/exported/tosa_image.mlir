module attributes {tf_saved_model.semantics, tfl.description = "MLIR Converted.", tfl.schema_version = 3 : i32} {
  func.func @main(%arg0: tensor<1x8x8x3xf32> {ml_program.identifier = "serving_default_x:0", tf_saved_model.index_path = ["x"]}) -> (tensor<1x10xf32> {ml_program.identifier = "PartitionedCall:0", tf_saved_model.index_path = ["out"]}) attributes {tf_saved_model.exported_names = ["serving_default"]} {
    %0 = "tosa.const"() <{values = dense<0.1> : tensor<4x3x3x3xf32>}> : () -> tensor<4x3x3x3xf32> loc(#loc2)
    %1 = "tosa.const"() <{values = dense<[0.1, 0.2, -0.3, 0.4]> : tensor<4xf32>}> : () -> tensor<4xf32>
    %z = "tosa.const"() <{values = dense<0.000000e+00> : tensor<1xf32>}> : () -> tensor<1xf32>
    %2 = tosa.conv2d %arg0, %0, %1, %z, %z {acc_type = f32, dilation = array<i64: 1, 1>, pad = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>} : (tensor<1x8x8x3xf32>, tensor<4x3x3x3xf32>, tensor<4xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x8x8x4xf32> loc(#loc2)
    %3 = tosa.clamp %2 {max_val = 3.40282347E+38 : f32, min_val = 0.000000e+00 : f32} : (tensor<1x8x8x4xf32>) -> tensor<1x8x8x4xf32>
    %4 = tosa.max_pool2d %3 {kernel = array<i64: 2, 2>, pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 2, 2>} : (tensor<1x8x8x4xf32>) -> tensor<1x4x4x4xf32>
    %5 = tosa.avg_pool2d %4, %z, %z {acc_type = f32, kernel = array<i64: 4, 4>, pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 4, 4>} : (tensor<1x4x4x4xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x1x1x4xf32>
    %6 = tosa.const_shape {values = dense<[1, 1, 4]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %7 = tosa.reshape %5, %6 : (tensor<1x1x1x4xf32>, !tosa.shape<3>) -> tensor<1x1x4xf32>
    %8 = "tosa.const"() <{values = dense<[[-0.05, 0.44, 0.76, 0.43], [0.84, -0.21, 0.6, -0.11], [0.87, 0.76, -0.81, -0.73], [-0.57, 0.93, -0.13, 0.25], [-0.4, 0.01, -0.23, -0.3], [0.17, 0.17, 0.81, 0.36], [0.86, 0.71, 0.98, 0.34], [-0.67, 0.72, 0.93, 0.81], [0.14, 0.43, -0.58, 0.66], [0.15, -0.43, -0.87, 0.71]]> : tensor<10x4xf32>}> : () -> tensor<10x4xf32>
    %9 = tosa.transpose %8 {perms = array<i32: 1, 0>} : (tensor<10x4xf32>) -> tensor<4x10xf32>
    %10 = tosa.const_shape {values = dense<[1, 4, 10]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %11 = tosa.reshape %9, %10 : (tensor<4x10xf32>, !tosa.shape<3>) -> tensor<1x4x10xf32>
    %12 = tosa.matmul %7, %11, %z, %z : (tensor<1x1x4xf32>, tensor<1x4x10xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x1x10xf32>
    %s = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
    %13 = tosa.mul %12, %12, %s : (tensor<1x1x10xf32>, tensor<1x1x10xf32>, tensor<1xi8>) -> tensor<1x1x10xf32>
    %14 = tosa.const_shape {values = dense<[1, 10]> : tensor<2xindex>} : () -> !tosa.shape<2>
    %15 = tosa.reshape %13, %14 : (tensor<1x1x10xf32>, !tosa.shape<2>) -> tensor<1x10xf32>
    %16 = tosa.negate %15, %z, %z : (tensor<1x10xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x10xf32>
    return %16 : tensor<1x10xf32> loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("model/conv"(#loc))
#loc2 = loc(fused["a", "b"])
