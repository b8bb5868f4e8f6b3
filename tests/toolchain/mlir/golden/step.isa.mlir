// A token of a decoder: its position and itself are written where commands read them; each position has its command.
builtin.module {
  npu.descriptor {sym_name = "command0", operation = "COPY", opcode = 12 : i64, in0_addr = 2155872256 : i64, out_addr = 2155876352 : i64, tile_m = 1 : i64, tile_n = 16 : i64}
  npu.descriptor {sym_name = "command1", operation = "COPY", opcode = 12 : i64, in0_addr = 2155872256 : i64, out_addr = 2155880448 : i64, tile_m = 2 : i64, tile_n = 16 : i64}
  func.func @step(%position: i32, %token: i32) -> !npu.ticket {
    npu.patch %position {address = 2156236032 : i64}
    npu.patch %token {address = 2156236064 : i64}
    npu.choose %position {at = array<i64: 5, 6>} ^bb0, ^bb1
  ^bb0:
    %flags = arith.constant 0 : i32
    %d0 = npu.address {of = "command0"} : i32
    %ticket0 = npu.enqcmd %d0, %flags : !npu.ticket
    func.return %ticket0 : !npu.ticket
  ^bb1:
    %flags_1 = arith.constant 0 : i32
    %d1 = npu.address {of = "command1"} : i32
    %ticket1 = npu.enqcmd %d1, %flags_1 : !npu.ticket
    func.return %ticket1 : !npu.ticket
  }
}
