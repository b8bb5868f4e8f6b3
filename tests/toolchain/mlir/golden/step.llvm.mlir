module {
  llvm.mlir.global internal @command0() {alignment = 64 : i64} : !llvm.array<16 x i32> {
    %0 = llvm.mlir.constant(dense<[12, 0, -2139095040, 0, 0, 0, -2139090944, 0, 1, 16, 0, 0, 0, 0, 0, 0]> : tensor<16xi32>) : !llvm.array<16 x i32>
    llvm.return %0 : !llvm.array<16 x i32>
  }
  llvm.mlir.global internal @command1() {alignment = 64 : i64} : !llvm.array<16 x i32> {
    %0 = llvm.mlir.constant(dense<[12, 0, -2139095040, 0, 0, 0, -2139086848, 0, 2, 16, 0, 0, 0, 0, 0, 0]> : tensor<16xi32>) : !llvm.array<16 x i32>
    llvm.return %0 : !llvm.array<16 x i32>
  }
  llvm.func @npu_generated_tight_step(%position: i32, %token: i32) -> i32 {
    %0 = llvm.mlir.constant(-2138731264 : i32) : i32
    %1 = llvm.inttoptr %0 : i32 to !llvm.ptr
    llvm.store volatile %position, %1 : i32, !llvm.ptr
    %2 = llvm.mlir.constant(-2138731232 : i32) : i32
    %3 = llvm.inttoptr %2 : i32 to !llvm.ptr
    llvm.store volatile %token, %3 : i32, !llvm.ptr
    llvm.switch %position : i32, ^case2 [5: ^case1, 6: ^case2]
  ^case1:
    %4 = llvm.mlir.addressof @command0 : !llvm.ptr
    %5 = llvm.mlir.constant(-16 : i32) : i32
    llvm.br ^bb7
  ^bb7:
    %8 = llvm.inline_asm has_side_effects ".insn r CUSTOM_0, 0, 0x2e, $0, $1, x0", "=r,r,~{memory}" %4 : (!llvm.ptr) -> i32
    %9 = llvm.icmp "eq" %8, %5 : i32
    llvm.cond_br %9 weights(dense<[1, 2000]> : vector<2xi32>), ^bb7, ^bb8
  ^bb8:
    llvm.return %8 : i32
  ^case2:
    %10 = llvm.mlir.addressof @command1 : !llvm.ptr
    %11 = llvm.mlir.constant(-16 : i32) : i32
    llvm.br ^bb13
  ^bb13:
    %14 = llvm.inline_asm has_side_effects ".insn r CUSTOM_0, 0, 0x2e, $0, $1, x0", "=r,r,~{memory}" %10 : (!llvm.ptr) -> i32
    %15 = llvm.icmp "eq" %14, %11 : i32
    llvm.cond_br %15 weights(dense<[1, 2000]> : vector<2xi32>), ^bb13, ^bb14
  ^bb14:
    llvm.return %14 : i32
  }
  llvm.func @npu_generated_loose_step(%ring: !llvm.ptr, %registers: !llvm.ptr, %tail: i32, %mask: i32, %position: i32, %token: i32) -> i32 {
    %0 = llvm.mlir.constant(1 : i32) : i32
    %1 = llvm.add %mask, %0 : i32
    %2 = llvm.add %tail, %1 : i32
    %3 = llvm.mlir.constant(-2138731264 : i32) : i32
    %4 = llvm.inttoptr %3 : i32 to !llvm.ptr
    llvm.store volatile %position, %4 : i32, !llvm.ptr
    %5 = llvm.mlir.constant(-2138731232 : i32) : i32
    %6 = llvm.inttoptr %5 : i32 to !llvm.ptr
    llvm.store volatile %token, %6 : i32, !llvm.ptr
    llvm.switch %position : i32, ^case2 [5: ^case1, 6: ^case2]
  ^case1:
    llvm.br ^bb8(%2 : i32)
  ^bb8(%limit10: i32):
    %10 = llvm.icmp "eq" %tail, %limit10 : i32
    llvm.cond_br %10 weights(dense<[1, 2000]> : vector<2xi32>), ^bb9, ^bb10
  ^bb9:
    %11 = llvm.mlir.constant(16 : i32) : i32
    %12 = llvm.getelementptr %registers[%11] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %13 = llvm.load volatile %12 : !llvm.ptr -> i32
    %14 = llvm.add %13, %1 : i32
    llvm.br ^bb8(%14 : i32)
  ^bb10:
    %15 = llvm.and %tail, %mask : i32
    %16 = llvm.mlir.constant(64 : i32) : i32
    %17 = llvm.mul %15, %16 : i32
    %18 = llvm.getelementptr %ring[%17] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %19 = llvm.mlir.constant(1 : i32) : i32
    %20 = llvm.add %tail, %19 : i32
    %21 = llvm.mlir.constant(12 : i32) : i32
    %22 = llvm.mlir.constant(0 : i32) : i32
    %23 = llvm.getelementptr %18[%22] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %21, %23 : i32, !llvm.ptr
    %24 = llvm.mlir.constant(0 : i32) : i32
    %25 = llvm.mlir.constant(4 : i32) : i32
    %26 = llvm.getelementptr %18[%25] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %24, %26 : i32, !llvm.ptr
    %27 = llvm.mlir.constant(-2139095040 : i32) : i32
    %28 = llvm.mlir.constant(8 : i32) : i32
    %29 = llvm.getelementptr %18[%28] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %27, %29 : i32, !llvm.ptr
    %30 = llvm.mlir.constant(0 : i32) : i32
    %31 = llvm.mlir.constant(12 : i32) : i32
    %32 = llvm.getelementptr %18[%31] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %30, %32 : i32, !llvm.ptr
    %33 = llvm.mlir.constant(0 : i32) : i32
    %34 = llvm.mlir.constant(16 : i32) : i32
    %35 = llvm.getelementptr %18[%34] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %33, %35 : i32, !llvm.ptr
    %36 = llvm.mlir.constant(0 : i32) : i32
    %37 = llvm.mlir.constant(20 : i32) : i32
    %38 = llvm.getelementptr %18[%37] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %36, %38 : i32, !llvm.ptr
    %39 = llvm.mlir.constant(-2139090944 : i32) : i32
    %40 = llvm.mlir.constant(24 : i32) : i32
    %41 = llvm.getelementptr %18[%40] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %39, %41 : i32, !llvm.ptr
    %42 = llvm.mlir.constant(0 : i32) : i32
    %43 = llvm.mlir.constant(28 : i32) : i32
    %44 = llvm.getelementptr %18[%43] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %42, %44 : i32, !llvm.ptr
    %45 = llvm.mlir.constant(1 : i32) : i32
    %46 = llvm.mlir.constant(32 : i32) : i32
    %47 = llvm.getelementptr %18[%46] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %45, %47 : i32, !llvm.ptr
    %48 = llvm.mlir.constant(16 : i32) : i32
    %49 = llvm.mlir.constant(36 : i32) : i32
    %50 = llvm.getelementptr %18[%49] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %48, %50 : i32, !llvm.ptr
    %51 = llvm.mlir.constant(0 : i32) : i32
    %52 = llvm.mlir.constant(40 : i32) : i32
    %53 = llvm.getelementptr %18[%52] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %51, %53 : i32, !llvm.ptr
    %54 = llvm.mlir.constant(0 : i32) : i32
    %55 = llvm.mlir.constant(44 : i32) : i32
    %56 = llvm.getelementptr %18[%55] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %54, %56 : i32, !llvm.ptr
    %57 = llvm.mlir.constant(0 : i32) : i32
    %58 = llvm.mlir.constant(48 : i32) : i32
    %59 = llvm.getelementptr %18[%58] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %57, %59 : i32, !llvm.ptr
    %60 = llvm.mlir.constant(0 : i32) : i32
    %61 = llvm.mlir.constant(52 : i32) : i32
    %62 = llvm.getelementptr %18[%61] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %60, %62 : i32, !llvm.ptr
    %63 = llvm.mlir.constant(0 : i32) : i32
    %64 = llvm.mlir.constant(56 : i32) : i32
    %65 = llvm.getelementptr %18[%64] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %63, %65 : i32, !llvm.ptr
    %66 = llvm.mlir.constant(2147483647 : i32) : i32
    %67 = llvm.and %20, %66 : i32
    %68 = llvm.mlir.constant(60 : i32) : i32
    %69 = llvm.getelementptr %18[%68] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %67, %69 : i32, !llvm.ptr
    llvm.inline_asm has_side_effects "fence w, o", "~{memory}" : () -> ()
    %70 = llvm.mlir.constant(32 : i32) : i32
    %71 = llvm.getelementptr %registers[%70] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %20, %71 : i32, !llvm.ptr
    llvm.return %20 : i32
  ^case2:
    llvm.br ^bb73(%2 : i32)
  ^bb73(%limit75: i32):
    %75 = llvm.icmp "eq" %tail, %limit75 : i32
    llvm.cond_br %75 weights(dense<[1, 2000]> : vector<2xi32>), ^bb74, ^bb75
  ^bb74:
    %76 = llvm.mlir.constant(16 : i32) : i32
    %77 = llvm.getelementptr %registers[%76] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %78 = llvm.load volatile %77 : !llvm.ptr -> i32
    %79 = llvm.add %78, %1 : i32
    llvm.br ^bb73(%79 : i32)
  ^bb75:
    %80 = llvm.and %tail, %mask : i32
    %81 = llvm.mlir.constant(64 : i32) : i32
    %82 = llvm.mul %80, %81 : i32
    %83 = llvm.getelementptr %ring[%82] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %84 = llvm.mlir.constant(1 : i32) : i32
    %85 = llvm.add %tail, %84 : i32
    %86 = llvm.mlir.constant(12 : i32) : i32
    %87 = llvm.mlir.constant(0 : i32) : i32
    %88 = llvm.getelementptr %83[%87] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %86, %88 : i32, !llvm.ptr
    %89 = llvm.mlir.constant(0 : i32) : i32
    %90 = llvm.mlir.constant(4 : i32) : i32
    %91 = llvm.getelementptr %83[%90] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %89, %91 : i32, !llvm.ptr
    %92 = llvm.mlir.constant(-2139095040 : i32) : i32
    %93 = llvm.mlir.constant(8 : i32) : i32
    %94 = llvm.getelementptr %83[%93] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %92, %94 : i32, !llvm.ptr
    %95 = llvm.mlir.constant(0 : i32) : i32
    %96 = llvm.mlir.constant(12 : i32) : i32
    %97 = llvm.getelementptr %83[%96] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %95, %97 : i32, !llvm.ptr
    %98 = llvm.mlir.constant(0 : i32) : i32
    %99 = llvm.mlir.constant(16 : i32) : i32
    %100 = llvm.getelementptr %83[%99] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %98, %100 : i32, !llvm.ptr
    %101 = llvm.mlir.constant(0 : i32) : i32
    %102 = llvm.mlir.constant(20 : i32) : i32
    %103 = llvm.getelementptr %83[%102] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %101, %103 : i32, !llvm.ptr
    %104 = llvm.mlir.constant(-2139086848 : i32) : i32
    %105 = llvm.mlir.constant(24 : i32) : i32
    %106 = llvm.getelementptr %83[%105] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %104, %106 : i32, !llvm.ptr
    %107 = llvm.mlir.constant(0 : i32) : i32
    %108 = llvm.mlir.constant(28 : i32) : i32
    %109 = llvm.getelementptr %83[%108] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %107, %109 : i32, !llvm.ptr
    %110 = llvm.mlir.constant(2 : i32) : i32
    %111 = llvm.mlir.constant(32 : i32) : i32
    %112 = llvm.getelementptr %83[%111] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %110, %112 : i32, !llvm.ptr
    %113 = llvm.mlir.constant(16 : i32) : i32
    %114 = llvm.mlir.constant(36 : i32) : i32
    %115 = llvm.getelementptr %83[%114] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %113, %115 : i32, !llvm.ptr
    %116 = llvm.mlir.constant(0 : i32) : i32
    %117 = llvm.mlir.constant(40 : i32) : i32
    %118 = llvm.getelementptr %83[%117] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %116, %118 : i32, !llvm.ptr
    %119 = llvm.mlir.constant(0 : i32) : i32
    %120 = llvm.mlir.constant(44 : i32) : i32
    %121 = llvm.getelementptr %83[%120] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %119, %121 : i32, !llvm.ptr
    %122 = llvm.mlir.constant(0 : i32) : i32
    %123 = llvm.mlir.constant(48 : i32) : i32
    %124 = llvm.getelementptr %83[%123] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %122, %124 : i32, !llvm.ptr
    %125 = llvm.mlir.constant(0 : i32) : i32
    %126 = llvm.mlir.constant(52 : i32) : i32
    %127 = llvm.getelementptr %83[%126] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %125, %127 : i32, !llvm.ptr
    %128 = llvm.mlir.constant(0 : i32) : i32
    %129 = llvm.mlir.constant(56 : i32) : i32
    %130 = llvm.getelementptr %83[%129] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %128, %130 : i32, !llvm.ptr
    %131 = llvm.mlir.constant(2147483647 : i32) : i32
    %132 = llvm.and %85, %131 : i32
    %133 = llvm.mlir.constant(60 : i32) : i32
    %134 = llvm.getelementptr %83[%133] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %132, %134 : i32, !llvm.ptr
    llvm.inline_asm has_side_effects "fence w, o", "~{memory}" : () -> ()
    %135 = llvm.mlir.constant(32 : i32) : i32
    %136 = llvm.getelementptr %registers[%135] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %85, %136 : i32, !llvm.ptr
    llvm.return %85 : i32
  }
  llvm.func @npu_generated_loose_tail_step(%ring: !llvm.ptr, %registers: !llvm.ptr, %tail: i32, %mask: i32, %position: i32, %token: i32) -> i32 {
    %0 = llvm.mlir.constant(1 : i32) : i32
    %1 = llvm.add %mask, %0 : i32
    %2 = llvm.add %tail, %1 : i32
    %3 = llvm.mlir.constant(-2138731264 : i32) : i32
    %4 = llvm.inttoptr %3 : i32 to !llvm.ptr
    llvm.store volatile %position, %4 : i32, !llvm.ptr
    %5 = llvm.mlir.constant(-2138731232 : i32) : i32
    %6 = llvm.inttoptr %5 : i32 to !llvm.ptr
    llvm.store volatile %token, %6 : i32, !llvm.ptr
    llvm.switch %position : i32, ^case2 [5: ^case1, 6: ^case2]
  ^case1:
    llvm.br ^bb8(%2 : i32)
  ^bb8(%limit10: i32):
    %10 = llvm.icmp "eq" %tail, %limit10 : i32
    llvm.cond_br %10 weights(dense<[1, 2000]> : vector<2xi32>), ^bb9, ^bb10
  ^bb9:
    %11 = llvm.mlir.constant(16 : i32) : i32
    %12 = llvm.getelementptr %registers[%11] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %13 = llvm.load volatile %12 : !llvm.ptr -> i32
    %14 = llvm.add %13, %1 : i32
    llvm.br ^bb8(%14 : i32)
  ^bb10:
    %15 = llvm.and %tail, %mask : i32
    %16 = llvm.mlir.constant(64 : i32) : i32
    %17 = llvm.mul %15, %16 : i32
    %18 = llvm.getelementptr %ring[%17] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %19 = llvm.mlir.constant(1 : i32) : i32
    %20 = llvm.add %tail, %19 : i32
    %21 = llvm.mlir.constant(12 : i32) : i32
    %22 = llvm.mlir.constant(0 : i32) : i32
    %23 = llvm.getelementptr %18[%22] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %21, %23 : i32, !llvm.ptr
    %24 = llvm.mlir.constant(0 : i32) : i32
    %25 = llvm.mlir.constant(4 : i32) : i32
    %26 = llvm.getelementptr %18[%25] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %24, %26 : i32, !llvm.ptr
    %27 = llvm.mlir.constant(-2139095040 : i32) : i32
    %28 = llvm.mlir.constant(8 : i32) : i32
    %29 = llvm.getelementptr %18[%28] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %27, %29 : i32, !llvm.ptr
    %30 = llvm.mlir.constant(0 : i32) : i32
    %31 = llvm.mlir.constant(12 : i32) : i32
    %32 = llvm.getelementptr %18[%31] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %30, %32 : i32, !llvm.ptr
    %33 = llvm.mlir.constant(0 : i32) : i32
    %34 = llvm.mlir.constant(16 : i32) : i32
    %35 = llvm.getelementptr %18[%34] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %33, %35 : i32, !llvm.ptr
    %36 = llvm.mlir.constant(0 : i32) : i32
    %37 = llvm.mlir.constant(20 : i32) : i32
    %38 = llvm.getelementptr %18[%37] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %36, %38 : i32, !llvm.ptr
    %39 = llvm.mlir.constant(-2139090944 : i32) : i32
    %40 = llvm.mlir.constant(24 : i32) : i32
    %41 = llvm.getelementptr %18[%40] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %39, %41 : i32, !llvm.ptr
    %42 = llvm.mlir.constant(0 : i32) : i32
    %43 = llvm.mlir.constant(28 : i32) : i32
    %44 = llvm.getelementptr %18[%43] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %42, %44 : i32, !llvm.ptr
    %45 = llvm.mlir.constant(1 : i32) : i32
    %46 = llvm.mlir.constant(32 : i32) : i32
    %47 = llvm.getelementptr %18[%46] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %45, %47 : i32, !llvm.ptr
    %48 = llvm.mlir.constant(16 : i32) : i32
    %49 = llvm.mlir.constant(36 : i32) : i32
    %50 = llvm.getelementptr %18[%49] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %48, %50 : i32, !llvm.ptr
    %51 = llvm.mlir.constant(0 : i32) : i32
    %52 = llvm.mlir.constant(40 : i32) : i32
    %53 = llvm.getelementptr %18[%52] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %51, %53 : i32, !llvm.ptr
    %54 = llvm.mlir.constant(0 : i32) : i32
    %55 = llvm.mlir.constant(44 : i32) : i32
    %56 = llvm.getelementptr %18[%55] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %54, %56 : i32, !llvm.ptr
    %57 = llvm.mlir.constant(0 : i32) : i32
    %58 = llvm.mlir.constant(48 : i32) : i32
    %59 = llvm.getelementptr %18[%58] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %57, %59 : i32, !llvm.ptr
    %60 = llvm.mlir.constant(0 : i32) : i32
    %61 = llvm.mlir.constant(52 : i32) : i32
    %62 = llvm.getelementptr %18[%61] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %60, %62 : i32, !llvm.ptr
    %63 = llvm.mlir.constant(0 : i32) : i32
    %64 = llvm.mlir.constant(56 : i32) : i32
    %65 = llvm.getelementptr %18[%64] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %63, %65 : i32, !llvm.ptr
    %66 = llvm.mlir.constant(2147483647 : i32) : i32
    %67 = llvm.and %20, %66 : i32
    %68 = llvm.mlir.constant(60 : i32) : i32
    %69 = llvm.getelementptr %18[%68] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %67, %69 : i32, !llvm.ptr
    llvm.inline_asm has_side_effects "fence w, o", "~{memory}" : () -> ()
    %70 = llvm.mlir.constant(20 : i32) : i32
    %71 = llvm.getelementptr %registers[%70] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %20, %71 : i32, !llvm.ptr
    %72 = llvm.mlir.constant(32 : i32) : i32
    %73 = llvm.getelementptr %registers[%72] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %20, %73 : i32, !llvm.ptr
    llvm.return %20 : i32
  ^case2:
    llvm.br ^bb75(%2 : i32)
  ^bb75(%limit77: i32):
    %77 = llvm.icmp "eq" %tail, %limit77 : i32
    llvm.cond_br %77 weights(dense<[1, 2000]> : vector<2xi32>), ^bb76, ^bb77
  ^bb76:
    %78 = llvm.mlir.constant(16 : i32) : i32
    %79 = llvm.getelementptr %registers[%78] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %80 = llvm.load volatile %79 : !llvm.ptr -> i32
    %81 = llvm.add %80, %1 : i32
    llvm.br ^bb75(%81 : i32)
  ^bb77:
    %82 = llvm.and %tail, %mask : i32
    %83 = llvm.mlir.constant(64 : i32) : i32
    %84 = llvm.mul %82, %83 : i32
    %85 = llvm.getelementptr %ring[%84] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    %86 = llvm.mlir.constant(1 : i32) : i32
    %87 = llvm.add %tail, %86 : i32
    %88 = llvm.mlir.constant(12 : i32) : i32
    %89 = llvm.mlir.constant(0 : i32) : i32
    %90 = llvm.getelementptr %85[%89] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %88, %90 : i32, !llvm.ptr
    %91 = llvm.mlir.constant(0 : i32) : i32
    %92 = llvm.mlir.constant(4 : i32) : i32
    %93 = llvm.getelementptr %85[%92] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %91, %93 : i32, !llvm.ptr
    %94 = llvm.mlir.constant(-2139095040 : i32) : i32
    %95 = llvm.mlir.constant(8 : i32) : i32
    %96 = llvm.getelementptr %85[%95] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %94, %96 : i32, !llvm.ptr
    %97 = llvm.mlir.constant(0 : i32) : i32
    %98 = llvm.mlir.constant(12 : i32) : i32
    %99 = llvm.getelementptr %85[%98] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %97, %99 : i32, !llvm.ptr
    %100 = llvm.mlir.constant(0 : i32) : i32
    %101 = llvm.mlir.constant(16 : i32) : i32
    %102 = llvm.getelementptr %85[%101] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %100, %102 : i32, !llvm.ptr
    %103 = llvm.mlir.constant(0 : i32) : i32
    %104 = llvm.mlir.constant(20 : i32) : i32
    %105 = llvm.getelementptr %85[%104] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %103, %105 : i32, !llvm.ptr
    %106 = llvm.mlir.constant(-2139086848 : i32) : i32
    %107 = llvm.mlir.constant(24 : i32) : i32
    %108 = llvm.getelementptr %85[%107] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %106, %108 : i32, !llvm.ptr
    %109 = llvm.mlir.constant(0 : i32) : i32
    %110 = llvm.mlir.constant(28 : i32) : i32
    %111 = llvm.getelementptr %85[%110] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %109, %111 : i32, !llvm.ptr
    %112 = llvm.mlir.constant(2 : i32) : i32
    %113 = llvm.mlir.constant(32 : i32) : i32
    %114 = llvm.getelementptr %85[%113] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %112, %114 : i32, !llvm.ptr
    %115 = llvm.mlir.constant(16 : i32) : i32
    %116 = llvm.mlir.constant(36 : i32) : i32
    %117 = llvm.getelementptr %85[%116] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %115, %117 : i32, !llvm.ptr
    %118 = llvm.mlir.constant(0 : i32) : i32
    %119 = llvm.mlir.constant(40 : i32) : i32
    %120 = llvm.getelementptr %85[%119] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %118, %120 : i32, !llvm.ptr
    %121 = llvm.mlir.constant(0 : i32) : i32
    %122 = llvm.mlir.constant(44 : i32) : i32
    %123 = llvm.getelementptr %85[%122] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %121, %123 : i32, !llvm.ptr
    %124 = llvm.mlir.constant(0 : i32) : i32
    %125 = llvm.mlir.constant(48 : i32) : i32
    %126 = llvm.getelementptr %85[%125] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %124, %126 : i32, !llvm.ptr
    %127 = llvm.mlir.constant(0 : i32) : i32
    %128 = llvm.mlir.constant(52 : i32) : i32
    %129 = llvm.getelementptr %85[%128] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %127, %129 : i32, !llvm.ptr
    %130 = llvm.mlir.constant(0 : i32) : i32
    %131 = llvm.mlir.constant(56 : i32) : i32
    %132 = llvm.getelementptr %85[%131] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %130, %132 : i32, !llvm.ptr
    %133 = llvm.mlir.constant(2147483647 : i32) : i32
    %134 = llvm.and %87, %133 : i32
    %135 = llvm.mlir.constant(60 : i32) : i32
    %136 = llvm.getelementptr %85[%135] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store %134, %136 : i32, !llvm.ptr
    llvm.inline_asm has_side_effects "fence w, o", "~{memory}" : () -> ()
    %137 = llvm.mlir.constant(20 : i32) : i32
    %138 = llvm.getelementptr %registers[%137] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %87, %138 : i32, !llvm.ptr
    %139 = llvm.mlir.constant(32 : i32) : i32
    %140 = llvm.getelementptr %registers[%139] : (!llvm.ptr, i32) -> !llvm.ptr, i8
    llvm.store volatile %87, %140 : i32, !llvm.ptr
    llvm.return %87 : i32
  }
}
