module {
  func.func @main(%arg0: tensor<1x8xi8>) -> tensor<1x4xi8> {
    %0 = "tosa.const"() <{values = dense<[[-2, 9, 8, -5, 2, 6, 9, -7], [-9, 6, -1, 8, -2, -3, 6, 8], [8, 6, 3, -5, -2, -5, 7, 3], [-9, -7, -4, 9, -8, 0, -9, -1]]> : tensor<4x8xi8>}> : () -> tensor<4x8xi8>
    %w = tosa.transpose %0 {perms = array<i32: 1, 0>} : (tensor<4x8xi8>) -> tensor<8x4xi8>
    %sa = tosa.const_shape {values = dense<[1, 1, 8]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %sw = tosa.const_shape {values = dense<[1, 8, 4]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %a = tosa.reshape %arg0, %sa : (tensor<1x8xi8>, !tosa.shape<3>) -> tensor<1x1x8xi8>
    %b = tosa.reshape %w, %sw : (tensor<8x4xi8>, !tosa.shape<3>) -> tensor<1x8x4xi8>
    %z0 = "tosa.const"() <{values = dense<-1> : tensor<1xi8>}> : () -> tensor<1xi8>
    %z1 = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
    %m = tosa.matmul %a, %b, %z0, %z1 : (tensor<1x1x8xi8>, tensor<1x8x4xi8>, tensor<1xi8>, tensor<1xi8>) -> tensor<1x1x4xi32>
    %mult = "tosa.const"() <{values = dense<1073741824> : tensor<1xi32>}> : () -> tensor<1xi32>
    %shift = "tosa.const"() <{values = dense<37> : tensor<1xi8>}> : () -> tensor<1xi8>
    %izp = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
    %ozp = "tosa.const"() <{values = dense<4> : tensor<1xi8>}> : () -> tensor<1xi8>
    %r = tosa.rescale %m, %mult, %shift, %izp, %ozp {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = DOUBLE_ROUND, scale32 = true} : (tensor<1x1x4xi32>, tensor<1xi32>, tensor<1xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<1x1x4xi8>
    %sr = tosa.const_shape {values = dense<[1, 4]> : tensor<2xindex>} : () -> !tosa.shape<2>
    %y = tosa.reshape %r, %sr : (tensor<1x1x4xi8>, !tosa.shape<2>) -> tensor<1x4xi8>
    return %y : tensor<1x4xi8>
  }
}
