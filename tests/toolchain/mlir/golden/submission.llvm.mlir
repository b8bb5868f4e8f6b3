module {
  llvm.mlir.global internal @block0() {alignment = 64 : i64} : !llvm.array<32 x i32> {
    %0 = llvm.mlir.constant(dense<[4, 16, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1342177280, 0, 2096896, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]> : tensor<32xi32>) : !llvm.array<32 x i32>
    llvm.return %0 : !llvm.array<32 x i32>
  }
  llvm.mlir.global internal @command0() {alignment = 64 : i64} : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)> {
    %0 = llvm.mlir.undef : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
    %1 = llvm.mlir.constant(dense<[98307, 262144, -2139095040, 0, -2139094912, 0, 1344274176, 0, 4, 16, 8, 65793, 0]> : tensor<13xi32>) : !llvm.array<13 x i32>
    %2 = llvm.mlir.addressof @block0 : !llvm.ptr
    %3 = llvm.mlir.constant(dense<[0, 0]> : tensor<2xi32>) : !llvm.array<2 x i32>
    %4 = llvm.insertvalue %1, %0[0] : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
    %5 = llvm.insertvalue %2, %4[1] : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
    %6 = llvm.insertvalue %3, %5[2] : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
    llvm.return %6 : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
  }
  llvm.mlir.global internal @block1() {alignment = 64 : i64} : !llvm.array<32 x i32> {
    %0 = llvm.mlir.constant(dense<[4, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1342177280, 0, 2096896, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]> : tensor<32xi32>) : !llvm.array<32 x i32>
    llvm.return %0 : !llvm.array<32 x i32>
  }
  llvm.mlir.global internal @command1() {alignment = 64 : i64} : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)> {
    %0 = llvm.mlir.undef : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
    %1 = llvm.mlir.constant(dense<[98312, 262144, 1344274176, 0, 0, 0, -2139094144, 0, 4, 16, 0, 65537, 0]> : tensor<13xi32>) : !llvm.array<13 x i32>
    %2 = llvm.mlir.addressof @block1 : !llvm.ptr
    %3 = llvm.mlir.constant(dense<[0, 0]> : tensor<2xi32>) : !llvm.array<2 x i32>
    %4 = llvm.insertvalue %1, %0[0] : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
    %5 = llvm.insertvalue %2, %4[1] : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
    %6 = llvm.insertvalue %3, %5[2] : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
    llvm.return %6 : !llvm.struct<(array<13 x i32>, ptr, array<2 x i32>)>
  }
  llvm.func @npu_generated_tight_submit(%position: i32, %token: i32) -> i32 {
    %0 = llvm.mlir.addressof @command0 : !llvm.ptr
    %1 = llvm.mlir.constant(-16 : i32) : i32
    llvm.br ^bb3
  ^bb3:
    %4 = llvm.inline_asm has_side_effects ".insn r CUSTOM_0, 0, 0x2e, $0, $1, x0", "=r,r,~{memory}" %0 : (!llvm.ptr) -> i32
    %5 = llvm.icmp "eq" %4, %1 : i32
    llvm.cond_br %5 weights(dense<[1, 2000]> : vector<2xi32>), ^bb3, ^bb4
  ^bb4:
    %6 = llvm.mlir.addressof @command1 : !llvm.ptr
    %7 = llvm.mlir.constant(-16 : i32) : i32
    llvm.br ^bb9
  ^bb9:
    %10 = llvm.inline_asm has_side_effects ".insn r CUSTOM_0, 0, 0x2e, $0, $1, x0", "=r,r,~{memory}" %6 : (!llvm.ptr) -> i32
    %11 = llvm.icmp "eq" %10, %7 : i32
    llvm.cond_br %11 weights(dense<[1, 2000]> : vector<2xi32>), ^bb9, ^bb10
  ^bb10:
    llvm.return %10 : i32
  }
  llvm.func @npu_generated_loose_submit(%ring: !llvm.ptr, %registers: !llvm.ptr, %tail: i32, %mask: i32, %position: i32, %token: i32) -> i32 {
    %0 = llvm.mlir.constant(1 : i32) : i32
    %1 = llvm.add %mask, %0 : i32
    %2 = llvm.add %tail, %1 : i32
    llvm.br ^bb4(%2 : i32)
  ^bb4(%limit6: i32):
    %6 = llvm.icmp "eq" %tail, %limit6 : i32
    llvm.cond_br %6 weights(dense<[1, 2000]> : vector<2xi32>), ^bb5, ^bb6
  ^bb5:
    %7 = llvm.mlir.constant(16 : i32) : i32
    %8 = llvm.getelementptr %registers[%7] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %9 = llvm.load volatile %8 : !llvm.ptr -> i32
    %10 = llvm.add %9, %1 : i32
    llvm.br ^bb4(%10 : i32)
  ^bb6:
    %11 = llvm.and %tail, %mask : i32
    %12 = llvm.mlir.constant(64 : i32) : i32
    %13 = llvm.mul %11, %12 : i32
    %14 = llvm.getelementptr %ring[%13] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %15 = llvm.mlir.constant(1 : i32) : i32
    %16 = llvm.add %tail, %15 : i32
    %17 = llvm.mlir.constant(98307 : i32) : i32
    %18 = llvm.mlir.constant(0 : i32) : i32
    %19 = llvm.getelementptr %14[%18] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %17, %19 : i32, !llvm.ptr
    %20 = llvm.mlir.constant(262144 : i32) : i32
    %21 = llvm.mlir.constant(4 : i32) : i32
    %22 = llvm.getelementptr %14[%21] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %20, %22 : i32, !llvm.ptr
    %23 = llvm.mlir.constant(-2139095040 : i32) : i32
    %24 = llvm.mlir.constant(8 : i32) : i32
    %25 = llvm.getelementptr %14[%24] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %23, %25 : i32, !llvm.ptr
    %26 = llvm.mlir.constant(0 : i32) : i32
    %27 = llvm.mlir.constant(12 : i32) : i32
    %28 = llvm.getelementptr %14[%27] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %26, %28 : i32, !llvm.ptr
    %29 = llvm.mlir.constant(-2139094912 : i32) : i32
    %30 = llvm.mlir.constant(16 : i32) : i32
    %31 = llvm.getelementptr %14[%30] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %29, %31 : i32, !llvm.ptr
    %32 = llvm.mlir.constant(0 : i32) : i32
    %33 = llvm.mlir.constant(20 : i32) : i32
    %34 = llvm.getelementptr %14[%33] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %32, %34 : i32, !llvm.ptr
    %35 = llvm.mlir.constant(1344274176 : i32) : i32
    %36 = llvm.mlir.constant(24 : i32) : i32
    %37 = llvm.getelementptr %14[%36] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %35, %37 : i32, !llvm.ptr
    %38 = llvm.mlir.constant(0 : i32) : i32
    %39 = llvm.mlir.constant(28 : i32) : i32
    %40 = llvm.getelementptr %14[%39] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %38, %40 : i32, !llvm.ptr
    %41 = llvm.mlir.constant(4 : i32) : i32
    %42 = llvm.mlir.constant(32 : i32) : i32
    %43 = llvm.getelementptr %14[%42] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %41, %43 : i32, !llvm.ptr
    %44 = llvm.mlir.constant(16 : i32) : i32
    %45 = llvm.mlir.constant(36 : i32) : i32
    %46 = llvm.getelementptr %14[%45] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %44, %46 : i32, !llvm.ptr
    %47 = llvm.mlir.constant(8 : i32) : i32
    %48 = llvm.mlir.constant(40 : i32) : i32
    %49 = llvm.getelementptr %14[%48] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %47, %49 : i32, !llvm.ptr
    %50 = llvm.mlir.constant(65793 : i32) : i32
    %51 = llvm.mlir.constant(44 : i32) : i32
    %52 = llvm.getelementptr %14[%51] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %50, %52 : i32, !llvm.ptr
    %53 = llvm.mlir.constant(0 : i32) : i32
    %54 = llvm.mlir.constant(48 : i32) : i32
    %55 = llvm.getelementptr %14[%54] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %53, %55 : i32, !llvm.ptr
    %56 = llvm.mlir.addressof @block0 : !llvm.ptr
    %57 = llvm.ptrtoint %56 : !llvm.ptr to i32
    %58 = llvm.mlir.constant(52 : i32) : i32
    %59 = llvm.getelementptr %14[%58] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %57, %59 : i32, !llvm.ptr
    %60 = llvm.mlir.constant(0 : i32) : i32
    %61 = llvm.mlir.constant(56 : i32) : i32
    %62 = llvm.getelementptr %14[%61] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %60, %62 : i32, !llvm.ptr
    %63 = llvm.mlir.constant(2147483647 : i32) : i32
    %64 = llvm.and %16, %63 : i32
    %65 = llvm.mlir.constant(60 : i32) : i32
    %66 = llvm.getelementptr %14[%65] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %64, %66 : i32, !llvm.ptr
    llvm.inline_asm has_side_effects "fence w, o", "~{memory}" : () -> ()
    %67 = llvm.mlir.constant(32 : i32) : i32
    %68 = llvm.getelementptr %registers[%67] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %16, %68 : i32, !llvm.ptr
    llvm.br ^bb70(%limit6 : i32)
  ^bb70(%limit72: i32):
    %72 = llvm.icmp "eq" %16, %limit72 : i32
    llvm.cond_br %72 weights(dense<[1, 2000]> : vector<2xi32>), ^bb71, ^bb72
  ^bb71:
    %73 = llvm.mlir.constant(16 : i32) : i32
    %74 = llvm.getelementptr %registers[%73] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %75 = llvm.load volatile %74 : !llvm.ptr -> i32
    %76 = llvm.add %75, %1 : i32
    llvm.br ^bb70(%76 : i32)
  ^bb72:
    %77 = llvm.and %16, %mask : i32
    %78 = llvm.mlir.constant(64 : i32) : i32
    %79 = llvm.mul %77, %78 : i32
    %80 = llvm.getelementptr %ring[%79] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %81 = llvm.mlir.constant(1 : i32) : i32
    %82 = llvm.add %16, %81 : i32
    %83 = llvm.mlir.constant(98312 : i32) : i32
    %84 = llvm.mlir.constant(0 : i32) : i32
    %85 = llvm.getelementptr %80[%84] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %83, %85 : i32, !llvm.ptr
    %86 = llvm.mlir.constant(262144 : i32) : i32
    %87 = llvm.mlir.constant(4 : i32) : i32
    %88 = llvm.getelementptr %80[%87] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %86, %88 : i32, !llvm.ptr
    %89 = llvm.mlir.constant(1344274176 : i32) : i32
    %90 = llvm.mlir.constant(8 : i32) : i32
    %91 = llvm.getelementptr %80[%90] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %89, %91 : i32, !llvm.ptr
    %92 = llvm.mlir.constant(0 : i32) : i32
    %93 = llvm.mlir.constant(12 : i32) : i32
    %94 = llvm.getelementptr %80[%93] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %92, %94 : i32, !llvm.ptr
    %95 = llvm.mlir.constant(0 : i32) : i32
    %96 = llvm.mlir.constant(16 : i32) : i32
    %97 = llvm.getelementptr %80[%96] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %95, %97 : i32, !llvm.ptr
    %98 = llvm.mlir.constant(0 : i32) : i32
    %99 = llvm.mlir.constant(20 : i32) : i32
    %100 = llvm.getelementptr %80[%99] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %98, %100 : i32, !llvm.ptr
    %101 = llvm.mlir.constant(-2139094144 : i32) : i32
    %102 = llvm.mlir.constant(24 : i32) : i32
    %103 = llvm.getelementptr %80[%102] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %101, %103 : i32, !llvm.ptr
    %104 = llvm.mlir.constant(0 : i32) : i32
    %105 = llvm.mlir.constant(28 : i32) : i32
    %106 = llvm.getelementptr %80[%105] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %104, %106 : i32, !llvm.ptr
    %107 = llvm.mlir.constant(4 : i32) : i32
    %108 = llvm.mlir.constant(32 : i32) : i32
    %109 = llvm.getelementptr %80[%108] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %107, %109 : i32, !llvm.ptr
    %110 = llvm.mlir.constant(16 : i32) : i32
    %111 = llvm.mlir.constant(36 : i32) : i32
    %112 = llvm.getelementptr %80[%111] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %110, %112 : i32, !llvm.ptr
    %113 = llvm.mlir.constant(0 : i32) : i32
    %114 = llvm.mlir.constant(40 : i32) : i32
    %115 = llvm.getelementptr %80[%114] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %113, %115 : i32, !llvm.ptr
    %116 = llvm.mlir.constant(65537 : i32) : i32
    %117 = llvm.mlir.constant(44 : i32) : i32
    %118 = llvm.getelementptr %80[%117] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %116, %118 : i32, !llvm.ptr
    %119 = llvm.mlir.constant(0 : i32) : i32
    %120 = llvm.mlir.constant(48 : i32) : i32
    %121 = llvm.getelementptr %80[%120] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %119, %121 : i32, !llvm.ptr
    %122 = llvm.mlir.addressof @block1 : !llvm.ptr
    %123 = llvm.ptrtoint %122 : !llvm.ptr to i32
    %124 = llvm.mlir.constant(52 : i32) : i32
    %125 = llvm.getelementptr %80[%124] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %123, %125 : i32, !llvm.ptr
    %126 = llvm.mlir.constant(0 : i32) : i32
    %127 = llvm.mlir.constant(56 : i32) : i32
    %128 = llvm.getelementptr %80[%127] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %126, %128 : i32, !llvm.ptr
    %129 = llvm.mlir.constant(2147483647 : i32) : i32
    %130 = llvm.and %82, %129 : i32
    %131 = llvm.mlir.constant(60 : i32) : i32
    %132 = llvm.getelementptr %80[%131] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %130, %132 : i32, !llvm.ptr
    llvm.inline_asm has_side_effects "fence w, o", "~{memory}" : () -> ()
    %133 = llvm.mlir.constant(32 : i32) : i32
    %134 = llvm.getelementptr %registers[%133] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %82, %134 : i32, !llvm.ptr
    llvm.return %82 : i32
  }
  llvm.func @npu_generated_loose_tail_submit(%ring: !llvm.ptr, %registers: !llvm.ptr, %tail: i32, %mask: i32, %position: i32, %token: i32) -> i32 {
    %0 = llvm.mlir.constant(1 : i32) : i32
    %1 = llvm.add %mask, %0 : i32
    %2 = llvm.add %tail, %1 : i32
    llvm.br ^bb4(%2 : i32)
  ^bb4(%limit6: i32):
    %6 = llvm.icmp "eq" %tail, %limit6 : i32
    llvm.cond_br %6 weights(dense<[1, 2000]> : vector<2xi32>), ^bb5, ^bb6
  ^bb5:
    %7 = llvm.mlir.constant(16 : i32) : i32
    %8 = llvm.getelementptr %registers[%7] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %9 = llvm.load volatile %8 : !llvm.ptr -> i32
    %10 = llvm.add %9, %1 : i32
    llvm.br ^bb4(%10 : i32)
  ^bb6:
    %11 = llvm.and %tail, %mask : i32
    %12 = llvm.mlir.constant(64 : i32) : i32
    %13 = llvm.mul %11, %12 : i32
    %14 = llvm.getelementptr %ring[%13] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %15 = llvm.mlir.constant(1 : i32) : i32
    %16 = llvm.add %tail, %15 : i32
    %17 = llvm.mlir.constant(98307 : i32) : i32
    %18 = llvm.mlir.constant(0 : i32) : i32
    %19 = llvm.getelementptr %14[%18] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %17, %19 : i32, !llvm.ptr
    %20 = llvm.mlir.constant(262144 : i32) : i32
    %21 = llvm.mlir.constant(4 : i32) : i32
    %22 = llvm.getelementptr %14[%21] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %20, %22 : i32, !llvm.ptr
    %23 = llvm.mlir.constant(-2139095040 : i32) : i32
    %24 = llvm.mlir.constant(8 : i32) : i32
    %25 = llvm.getelementptr %14[%24] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %23, %25 : i32, !llvm.ptr
    %26 = llvm.mlir.constant(0 : i32) : i32
    %27 = llvm.mlir.constant(12 : i32) : i32
    %28 = llvm.getelementptr %14[%27] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %26, %28 : i32, !llvm.ptr
    %29 = llvm.mlir.constant(-2139094912 : i32) : i32
    %30 = llvm.mlir.constant(16 : i32) : i32
    %31 = llvm.getelementptr %14[%30] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %29, %31 : i32, !llvm.ptr
    %32 = llvm.mlir.constant(0 : i32) : i32
    %33 = llvm.mlir.constant(20 : i32) : i32
    %34 = llvm.getelementptr %14[%33] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %32, %34 : i32, !llvm.ptr
    %35 = llvm.mlir.constant(1344274176 : i32) : i32
    %36 = llvm.mlir.constant(24 : i32) : i32
    %37 = llvm.getelementptr %14[%36] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %35, %37 : i32, !llvm.ptr
    %38 = llvm.mlir.constant(0 : i32) : i32
    %39 = llvm.mlir.constant(28 : i32) : i32
    %40 = llvm.getelementptr %14[%39] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %38, %40 : i32, !llvm.ptr
    %41 = llvm.mlir.constant(4 : i32) : i32
    %42 = llvm.mlir.constant(32 : i32) : i32
    %43 = llvm.getelementptr %14[%42] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %41, %43 : i32, !llvm.ptr
    %44 = llvm.mlir.constant(16 : i32) : i32
    %45 = llvm.mlir.constant(36 : i32) : i32
    %46 = llvm.getelementptr %14[%45] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %44, %46 : i32, !llvm.ptr
    %47 = llvm.mlir.constant(8 : i32) : i32
    %48 = llvm.mlir.constant(40 : i32) : i32
    %49 = llvm.getelementptr %14[%48] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %47, %49 : i32, !llvm.ptr
    %50 = llvm.mlir.constant(65793 : i32) : i32
    %51 = llvm.mlir.constant(44 : i32) : i32
    %52 = llvm.getelementptr %14[%51] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %50, %52 : i32, !llvm.ptr
    %53 = llvm.mlir.constant(0 : i32) : i32
    %54 = llvm.mlir.constant(48 : i32) : i32
    %55 = llvm.getelementptr %14[%54] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %53, %55 : i32, !llvm.ptr
    %56 = llvm.mlir.addressof @block0 : !llvm.ptr
    %57 = llvm.ptrtoint %56 : !llvm.ptr to i32
    %58 = llvm.mlir.constant(52 : i32) : i32
    %59 = llvm.getelementptr %14[%58] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %57, %59 : i32, !llvm.ptr
    %60 = llvm.mlir.constant(0 : i32) : i32
    %61 = llvm.mlir.constant(56 : i32) : i32
    %62 = llvm.getelementptr %14[%61] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %60, %62 : i32, !llvm.ptr
    %63 = llvm.mlir.constant(2147483647 : i32) : i32
    %64 = llvm.and %16, %63 : i32
    %65 = llvm.mlir.constant(60 : i32) : i32
    %66 = llvm.getelementptr %14[%65] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %64, %66 : i32, !llvm.ptr
    llvm.inline_asm has_side_effects "fence w, o", "~{memory}" : () -> ()
    %67 = llvm.mlir.constant(20 : i32) : i32
    %68 = llvm.getelementptr %registers[%67] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %16, %68 : i32, !llvm.ptr
    %69 = llvm.mlir.constant(32 : i32) : i32
    %70 = llvm.getelementptr %registers[%69] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %16, %70 : i32, !llvm.ptr
    llvm.br ^bb72(%limit6 : i32)
  ^bb72(%limit74: i32):
    %74 = llvm.icmp "eq" %16, %limit74 : i32
    llvm.cond_br %74 weights(dense<[1, 2000]> : vector<2xi32>), ^bb73, ^bb74
  ^bb73:
    %75 = llvm.mlir.constant(16 : i32) : i32
    %76 = llvm.getelementptr %registers[%75] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %77 = llvm.load volatile %76 : !llvm.ptr -> i32
    %78 = llvm.add %77, %1 : i32
    llvm.br ^bb72(%78 : i32)
  ^bb74:
    %79 = llvm.and %16, %mask : i32
    %80 = llvm.mlir.constant(64 : i32) : i32
    %81 = llvm.mul %79, %80 : i32
    %82 = llvm.getelementptr %ring[%81] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %83 = llvm.mlir.constant(1 : i32) : i32
    %84 = llvm.add %16, %83 : i32
    %85 = llvm.mlir.constant(98312 : i32) : i32
    %86 = llvm.mlir.constant(0 : i32) : i32
    %87 = llvm.getelementptr %82[%86] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %85, %87 : i32, !llvm.ptr
    %88 = llvm.mlir.constant(262144 : i32) : i32
    %89 = llvm.mlir.constant(4 : i32) : i32
    %90 = llvm.getelementptr %82[%89] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %88, %90 : i32, !llvm.ptr
    %91 = llvm.mlir.constant(1344274176 : i32) : i32
    %92 = llvm.mlir.constant(8 : i32) : i32
    %93 = llvm.getelementptr %82[%92] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %91, %93 : i32, !llvm.ptr
    %94 = llvm.mlir.constant(0 : i32) : i32
    %95 = llvm.mlir.constant(12 : i32) : i32
    %96 = llvm.getelementptr %82[%95] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %94, %96 : i32, !llvm.ptr
    %97 = llvm.mlir.constant(0 : i32) : i32
    %98 = llvm.mlir.constant(16 : i32) : i32
    %99 = llvm.getelementptr %82[%98] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %97, %99 : i32, !llvm.ptr
    %100 = llvm.mlir.constant(0 : i32) : i32
    %101 = llvm.mlir.constant(20 : i32) : i32
    %102 = llvm.getelementptr %82[%101] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %100, %102 : i32, !llvm.ptr
    %103 = llvm.mlir.constant(-2139094144 : i32) : i32
    %104 = llvm.mlir.constant(24 : i32) : i32
    %105 = llvm.getelementptr %82[%104] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %103, %105 : i32, !llvm.ptr
    %106 = llvm.mlir.constant(0 : i32) : i32
    %107 = llvm.mlir.constant(28 : i32) : i32
    %108 = llvm.getelementptr %82[%107] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %106, %108 : i32, !llvm.ptr
    %109 = llvm.mlir.constant(4 : i32) : i32
    %110 = llvm.mlir.constant(32 : i32) : i32
    %111 = llvm.getelementptr %82[%110] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %109, %111 : i32, !llvm.ptr
    %112 = llvm.mlir.constant(16 : i32) : i32
    %113 = llvm.mlir.constant(36 : i32) : i32
    %114 = llvm.getelementptr %82[%113] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %112, %114 : i32, !llvm.ptr
    %115 = llvm.mlir.constant(0 : i32) : i32
    %116 = llvm.mlir.constant(40 : i32) : i32
    %117 = llvm.getelementptr %82[%116] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %115, %117 : i32, !llvm.ptr
    %118 = llvm.mlir.constant(65537 : i32) : i32
    %119 = llvm.mlir.constant(44 : i32) : i32
    %120 = llvm.getelementptr %82[%119] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %118, %120 : i32, !llvm.ptr
    %121 = llvm.mlir.constant(0 : i32) : i32
    %122 = llvm.mlir.constant(48 : i32) : i32
    %123 = llvm.getelementptr %82[%122] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %121, %123 : i32, !llvm.ptr
    %124 = llvm.mlir.addressof @block1 : !llvm.ptr
    %125 = llvm.ptrtoint %124 : !llvm.ptr to i32
    %126 = llvm.mlir.constant(52 : i32) : i32
    %127 = llvm.getelementptr %82[%126] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %125, %127 : i32, !llvm.ptr
    %128 = llvm.mlir.constant(0 : i32) : i32
    %129 = llvm.mlir.constant(56 : i32) : i32
    %130 = llvm.getelementptr %82[%129] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %128, %130 : i32, !llvm.ptr
    %131 = llvm.mlir.constant(2147483647 : i32) : i32
    %132 = llvm.and %84, %131 : i32
    %133 = llvm.mlir.constant(60 : i32) : i32
    %134 = llvm.getelementptr %82[%133] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %132, %134 : i32, !llvm.ptr
    llvm.inline_asm has_side_effects "fence w, o", "~{memory}" : () -> ()
    %135 = llvm.mlir.constant(20 : i32) : i32
    %136 = llvm.getelementptr %registers[%135] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %84, %136 : i32, !llvm.ptr
    %137 = llvm.mlir.constant(32 : i32) : i32
    %138 = llvm.getelementptr %registers[%137] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %84, %138 : i32, !llvm.ptr
    llvm.return %84 : i32
  }
}
