	.text
	.attribute	4, 16
	.attribute	5, "rv32i2p0_m2p0"
	.file	"LLVMDialectModule"
	.globl	npu_generated_tight_submit      # -- Begin function npu_generated_tight_submit
	.p2align	2
	.type	npu_generated_tight_submit,@function
npu_generated_tight_submit:             # @npu_generated_tight_submit
	.cfi_startproc
# %bb.0:
	lui	a0, %hi(command0)
	addi	a0, a0, %lo(command0)
	li	a1, -16
.LBB0_1:                                # =>This Inner Loop Header: Depth=1
	#APP
	.insn r 11, 0, 46, a2, a0, zero
	#NO_APP
	beq	a2, a1, .LBB0_1
# %bb.2:
	lui	a0, %hi(command1)
	addi	a1, a0, %lo(command1)
	li	a2, -16
.LBB0_3:                                # =>This Inner Loop Header: Depth=1
	#APP
	.insn r 11, 0, 46, a0, a1, zero
	#NO_APP
	beq	a0, a2, .LBB0_3
# %bb.4:
	ret
.Lfunc_end0:
	.size	npu_generated_tight_submit, .Lfunc_end0-npu_generated_tight_submit
	.cfi_endproc
                                        # -- End function
	.globl	npu_generated_loose_submit      # -- Begin function npu_generated_loose_submit
	.p2align	2
	.type	npu_generated_loose_submit,@function
npu_generated_loose_submit:             # @npu_generated_loose_submit
	.cfi_startproc
# %bb.0:
	addi	a5, a3, 1
	add	a6, a2, a5
	beq	a2, a6, .LBB1_3
.LBB1_1:
	lui	a4, 524288
	addi	a4, a4, -1
	and	a7, a2, a3
	slli	a7, a7, 6
	add	a7, a0, a7
	addi	a2, a2, 1
	lui	t0, 24
	addi	t0, t0, 3
	sw	t0, 0(a7)
	lui	t0, 64
	sw	t0, 4(a7)
	lui	t0, 526336
	sw	t0, 8(a7)
	sw	zero, 12(a7)
	addi	t0, t0, 128
	sw	t0, 16(a7)
	sw	zero, 20(a7)
	lui	t0, 328192
	addi	t0, t0, -256
	sw	t0, 24(a7)
	sw	zero, 28(a7)
	li	t0, 4
	sw	t0, 32(a7)
	li	t0, 16
	sw	t0, 36(a7)
	li	t0, 8
	sw	t0, 40(a7)
	lui	t0, 16
	addi	t0, t0, 257
	sw	t0, 44(a7)
	sw	zero, 48(a7)
	lui	t0, %hi(block0)
	addi	t0, t0, %lo(block0)
	sw	t0, 52(a7)
	sw	zero, 56(a7)
	and	t0, a2, a4
	sw	t0, 60(a7)
	#APP
	fence	w, o
	#NO_APP
	sw	a2, 32(a1)
	beq	a2, a6, .LBB1_4
.LBB1_2:
	and	a3, a2, a3
	slli	a3, a3, 6
	add	a3, a0, a3
	addi	a0, a2, 1
	lui	a2, 24
	addi	a2, a2, 8
	sw	a2, 0(a3)
	lui	a2, 64
	sw	a2, 4(a3)
	lui	a2, 328192
	addi	a2, a2, -256
	sw	a2, 8(a3)
	sw	zero, 12(a3)
	sw	zero, 16(a3)
	sw	zero, 20(a3)
	lui	a2, 526336
	addi	a2, a2, 896
	sw	a2, 24(a3)
	sw	zero, 28(a3)
	li	a2, 4
	sw	a2, 32(a3)
	li	a2, 16
	sw	a2, 36(a3)
	sw	zero, 40(a3)
	lui	a2, 16
	addi	a2, a2, 1
	sw	a2, 44(a3)
	sw	zero, 48(a3)
	lui	a2, %hi(block1)
	addi	a2, a2, %lo(block1)
	sw	a2, 52(a3)
	sw	zero, 56(a3)
	and	a4, a0, a4
	sw	a4, 60(a3)
	#APP
	fence	w, o
	#NO_APP
	sw	a0, 32(a1)
	ret
.LBB1_3:                                # =>This Inner Loop Header: Depth=1
	lw	a6, 16(a1)
	add	a6, a6, a5
	bne	a2, a6, .LBB1_1
	j	.LBB1_3
.LBB1_4:                                # =>This Inner Loop Header: Depth=1
	lw	a6, 16(a1)
	add	a6, a6, a5
	bne	a2, a6, .LBB1_2
	j	.LBB1_4
.Lfunc_end1:
	.size	npu_generated_loose_submit, .Lfunc_end1-npu_generated_loose_submit
	.cfi_endproc
                                        # -- End function
	.globl	npu_generated_loose_tail_submit # -- Begin function npu_generated_loose_tail_submit
	.p2align	2
	.type	npu_generated_loose_tail_submit,@function
npu_generated_loose_tail_submit:        # @npu_generated_loose_tail_submit
	.cfi_startproc
# %bb.0:
	addi	a5, a3, 1
	add	a6, a2, a5
	beq	a2, a6, .LBB2_3
.LBB2_1:
	lui	a4, 524288
	addi	a4, a4, -1
	and	a7, a2, a3
	slli	a7, a7, 6
	add	a7, a0, a7
	addi	a2, a2, 1
	lui	t0, 24
	addi	t0, t0, 3
	sw	t0, 0(a7)
	lui	t0, 64
	sw	t0, 4(a7)
	lui	t0, 526336
	sw	t0, 8(a7)
	sw	zero, 12(a7)
	addi	t0, t0, 128
	sw	t0, 16(a7)
	sw	zero, 20(a7)
	lui	t0, 328192
	addi	t0, t0, -256
	sw	t0, 24(a7)
	sw	zero, 28(a7)
	li	t0, 4
	sw	t0, 32(a7)
	li	t0, 16
	sw	t0, 36(a7)
	li	t0, 8
	sw	t0, 40(a7)
	lui	t0, 16
	addi	t0, t0, 257
	sw	t0, 44(a7)
	sw	zero, 48(a7)
	lui	t0, %hi(block0)
	addi	t0, t0, %lo(block0)
	sw	t0, 52(a7)
	sw	zero, 56(a7)
	and	t0, a2, a4
	sw	t0, 60(a7)
	#APP
	fence	w, o
	#NO_APP
	sw	a2, 20(a1)
	sw	a2, 32(a1)
	beq	a2, a6, .LBB2_4
.LBB2_2:
	and	a3, a2, a3
	slli	a3, a3, 6
	add	a3, a0, a3
	addi	a0, a2, 1
	lui	a2, 24
	addi	a2, a2, 8
	sw	a2, 0(a3)
	lui	a2, 64
	sw	a2, 4(a3)
	lui	a2, 328192
	addi	a2, a2, -256
	sw	a2, 8(a3)
	sw	zero, 12(a3)
	sw	zero, 16(a3)
	sw	zero, 20(a3)
	lui	a2, 526336
	addi	a2, a2, 896
	sw	a2, 24(a3)
	sw	zero, 28(a3)
	li	a2, 4
	sw	a2, 32(a3)
	li	a2, 16
	sw	a2, 36(a3)
	sw	zero, 40(a3)
	lui	a2, 16
	addi	a2, a2, 1
	sw	a2, 44(a3)
	sw	zero, 48(a3)
	lui	a2, %hi(block1)
	addi	a2, a2, %lo(block1)
	sw	a2, 52(a3)
	sw	zero, 56(a3)
	and	a4, a0, a4
	sw	a4, 60(a3)
	#APP
	fence	w, o
	#NO_APP
	sw	a0, 20(a1)
	sw	a0, 32(a1)
	ret
.LBB2_3:                                # =>This Inner Loop Header: Depth=1
	lw	a6, 16(a1)
	add	a6, a6, a5
	bne	a2, a6, .LBB2_1
	j	.LBB2_3
.LBB2_4:                                # =>This Inner Loop Header: Depth=1
	lw	a6, 16(a1)
	add	a6, a6, a5
	bne	a2, a6, .LBB2_2
	j	.LBB2_4
.Lfunc_end2:
	.size	npu_generated_loose_tail_submit, .Lfunc_end2-npu_generated_loose_tail_submit
	.cfi_endproc
                                        # -- End function
	.type	block0,@object                  # @block0
	.data
	.p2align	6, 0x0
block0:
	.word	4                               # 0x4
	.word	16                              # 0x10
	.word	8                               # 0x8
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	1342177280                      # 0x50000000
	.word	0                               # 0x0
	.word	2096896                         # 0x1fff00
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.size	block0, 128

	.type	command0,@object                # @command0
	.p2align	6, 0x0
command0:
	.word	98307                           # 0x18003
	.word	262144                          # 0x40000
	.word	2155872256                      # 0x80800000
	.word	0                               # 0x0
	.word	2155872384                      # 0x80800080
	.word	0                               # 0x0
	.word	1344274176                      # 0x501fff00
	.word	0                               # 0x0
	.word	4                               # 0x4
	.word	16                              # 0x10
	.word	8                               # 0x8
	.word	65793                           # 0x10101
	.word	0                               # 0x0
	.word	block0
	.zero	8
	.size	command0, 64

	.type	block1,@object                  # @block1
	.p2align	6, 0x0
block1:
	.word	4                               # 0x4
	.word	16                              # 0x10
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	1342177280                      # 0x50000000
	.word	0                               # 0x0
	.word	2096896                         # 0x1fff00
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.size	block1, 128

	.type	command1,@object                # @command1
	.p2align	6, 0x0
command1:
	.word	98312                           # 0x18008
	.word	262144                          # 0x40000
	.word	1344274176                      # 0x501fff00
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	2155873152                      # 0x80800380
	.word	0                               # 0x0
	.word	4                               # 0x4
	.word	16                              # 0x10
	.word	0                               # 0x0
	.word	65537                           # 0x10001
	.word	0                               # 0x0
	.word	block1
	.zero	8
	.size	command1, 64

	.section	".note.GNU-stack","",@progbits
