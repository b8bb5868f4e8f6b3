builtin.module {
  npu.extended {sym_name = "block0", operation = "GEMM_T", m = 4 : i64, n = 16 : i64, k = 8 : i64, workspace = 1342177280 : i64, workspace_bytes = 2096896 : i64}
  npu.descriptor {sym_name = "command0", layer = "product", operation = "GEMM_T", block = "block0", opcode = 3 : i64, extended = 1 : i64, rank = 1 : i64, prefetch_dist = 4 : i64, in0_addr = 2155872256 : i64, in1_addr = 2155872384 : i64, out_addr = 1344274176 : i64, tile_m = 4 : i64, tile_n = 16 : i64, tile_k = 8 : i64, type_in0 = 1 : i64, type_in1 = 1 : i64, type_out = 1 : i64}
  npu.extended {sym_name = "block1", operation = "SOFTMAX", m = 4 : i64, n = 16 : i64, workspace = 1342177280 : i64, workspace_bytes = 2096896 : i64}
  npu.descriptor {sym_name = "command1", layer = "weights", operation = "SOFTMAX", block = "block1", opcode = 8 : i64, extended = 1 : i64, rank = 1 : i64, prefetch_dist = 4 : i64, in0_addr = 1344274176 : i64, out_addr = 2155873152 : i64, tile_m = 4 : i64, tile_n = 16 : i64, type_in0 = 1 : i64, type_out = 1 : i64}
  func.func @submit() -> !npu.ticket {
    %flags = arith.constant 0 : i32
    %d0 = npu.address {of = "command0"} : i32
    %ticket0 = npu.enqcmd %d0, %flags : !npu.ticket
    %d1 = npu.address {of = "command1"} : i32
    %ticket1 = npu.enqcmd %d1, %flags : !npu.ticket
    func.return %ticket1 : !npu.ticket
  }
}
