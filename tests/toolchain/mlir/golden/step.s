	.text
	.attribute	4, 16
	.attribute	5, "rv32i2p0_m2p0"
	.file	"LLVMDialectModule"
	.globl	npu_generated_tight_step        # -- Begin function npu_generated_tight_step
	.p2align	2
	.type	npu_generated_tight_step,@function
npu_generated_tight_step:               # @npu_generated_tight_step
	.cfi_startproc
# %bb.0:
	lui	a2, 526425
	sw	a0, -768(a2)
	li	a3, 5
	sw	a1, -736(a2)
	bne	a0, a3, .LBB0_4
# %bb.1:
	lui	a0, %hi(command0)
	addi	a1, a0, %lo(command0)
	li	a2, -16
.LBB0_2:                                # =>This Inner Loop Header: Depth=1
	#APP
	.insn r 11, 0, 46, a0, a1, zero
	#NO_APP
	beq	a0, a2, .LBB0_2
# %bb.3:
	ret
.LBB0_4:
	lui	a0, %hi(command1)
	addi	a1, a0, %lo(command1)
	li	a2, -16
.LBB0_5:                                # =>This Inner Loop Header: Depth=1
	#APP
	.insn r 11, 0, 46, a0, a1, zero
	#NO_APP
	beq	a0, a2, .LBB0_5
# %bb.6:
	ret
.Lfunc_end0:
	.size	npu_generated_tight_step, .Lfunc_end0-npu_generated_tight_step
	.cfi_endproc
                                        # -- End function
	.globl	npu_generated_loose_step        # -- Begin function npu_generated_loose_step
	.p2align	2
	.type	npu_generated_loose_step,@function
npu_generated_loose_step:               # @npu_generated_loose_step
	.cfi_startproc
# %bb.0:
	lui	a6, 524288
	addi	a6, a6, -1
	addi	a7, a3, 1
	add	t0, a2, a7
	lui	t1, 526425
	sw	a4, -768(t1)
	li	t2, 5
	sw	a5, -736(t1)
	bne	a4, t2, .LBB1_4
# %bb.1:
	bne	a2, t0, .LBB1_3
.LBB1_2:                                # =>This Inner Loop Header: Depth=1
	lw	t0, 16(a1)
	add	t0, t0, a7
	beq	a2, t0, .LBB1_2
.LBB1_3:
	and	a3, a2, a3
	slli	a3, a3, 6
	add	a3, a0, a3
	addi	a0, a2, 1
	li	a2, 12
	sw	a2, 0(a3)
	sw	zero, 4(a3)
	lui	a2, 526336
	sw	a2, 8(a3)
	sw	zero, 12(a3)
	sw	zero, 16(a3)
	sw	zero, 20(a3)
	lui	a2, 526337
	sw	a2, 24(a3)
	sw	zero, 28(a3)
	li	a2, 1
	sw	a2, 32(a3)
	li	a2, 16
	sw	a2, 36(a3)
	sw	zero, 40(a3)
	sw	zero, 44(a3)
	sw	zero, 48(a3)
	sw	zero, 52(a3)
	sw	zero, 56(a3)
	and	a2, a0, a6
	sw	a2, 60(a3)
	#APP
	fence	w, o
	#NO_APP
	sw	a0, 32(a1)
	ret
.LBB1_4:                                # =>This Inner Loop Header: Depth=1
	bne	a2, t0, .LBB1_6
# %bb.5:                                #   in Loop: Header=BB1_4 Depth=1
	lw	t0, 16(a1)
	add	t0, t0, a7
	j	.LBB1_4
.LBB1_6:
	and	a3, a2, a3
	slli	a3, a3, 6
	add	a3, a0, a3
	addi	a0, a2, 1
	li	a2, 12
	sw	a2, 0(a3)
	sw	zero, 4(a3)
	lui	a2, 526336
	sw	a2, 8(a3)
	sw	zero, 12(a3)
	sw	zero, 16(a3)
	sw	zero, 20(a3)
	lui	a2, 526338
	sw	a2, 24(a3)
	sw	zero, 28(a3)
	li	a2, 2
	sw	a2, 32(a3)
	li	a2, 16
	sw	a2, 36(a3)
	sw	zero, 40(a3)
	sw	zero, 44(a3)
	sw	zero, 48(a3)
	sw	zero, 52(a3)
	sw	zero, 56(a3)
	and	a2, a0, a6
	sw	a2, 60(a3)
	#APP
	fence	w, o
	#NO_APP
	sw	a0, 32(a1)
	ret
.Lfunc_end1:
	.size	npu_generated_loose_step, .Lfunc_end1-npu_generated_loose_step
	.cfi_endproc
                                        # -- End function
	.globl	npu_generated_loose_tail_step   # -- Begin function npu_generated_loose_tail_step
	.p2align	2
	.type	npu_generated_loose_tail_step,@function
npu_generated_loose_tail_step:          # @npu_generated_loose_tail_step
	.cfi_startproc
# %bb.0:
	lui	a6, 524288
	addi	a6, a6, -1
	addi	a7, a3, 1
	add	t0, a2, a7
	lui	t1, 526425
	sw	a4, -768(t1)
	li	t2, 5
	sw	a5, -736(t1)
	bne	a4, t2, .LBB2_4
# %bb.1:
	bne	a2, t0, .LBB2_3
.LBB2_2:                                # =>This Inner Loop Header: Depth=1
	lw	t0, 16(a1)
	add	t0, t0, a7
	beq	a2, t0, .LBB2_2
.LBB2_3:
	and	a3, a2, a3
	slli	a3, a3, 6
	add	a3, a0, a3
	addi	a0, a2, 1
	li	a2, 12
	sw	a2, 0(a3)
	sw	zero, 4(a3)
	lui	a2, 526336
	sw	a2, 8(a3)
	sw	zero, 12(a3)
	sw	zero, 16(a3)
	sw	zero, 20(a3)
	lui	a2, 526337
	sw	a2, 24(a3)
	sw	zero, 28(a3)
	li	a2, 1
	sw	a2, 32(a3)
	li	a2, 16
	sw	a2, 36(a3)
	sw	zero, 40(a3)
	sw	zero, 44(a3)
	sw	zero, 48(a3)
	sw	zero, 52(a3)
	sw	zero, 56(a3)
	and	a2, a0, a6
	sw	a2, 60(a3)
	#APP
	fence	w, o
	#NO_APP
	j	.LBB2_7
.LBB2_4:                                # =>This Inner Loop Header: Depth=1
	bne	a2, t0, .LBB2_6
# %bb.5:                                #   in Loop: Header=BB2_4 Depth=1
	lw	t0, 16(a1)
	add	t0, t0, a7
	j	.LBB2_4
.LBB2_6:
	and	a3, a2, a3
	slli	a3, a3, 6
	add	a3, a0, a3
	addi	a0, a2, 1
	li	a2, 12
	sw	a2, 0(a3)
	sw	zero, 4(a3)
	lui	a2, 526336
	sw	a2, 8(a3)
	sw	zero, 12(a3)
	sw	zero, 16(a3)
	sw	zero, 20(a3)
	lui	a2, 526338
	sw	a2, 24(a3)
	sw	zero, 28(a3)
	li	a2, 2
	sw	a2, 32(a3)
	li	a2, 16
	sw	a2, 36(a3)
	sw	zero, 40(a3)
	sw	zero, 44(a3)
	sw	zero, 48(a3)
	sw	zero, 52(a3)
	sw	zero, 56(a3)
	and	a2, a0, a6
	sw	a2, 60(a3)
	#APP
	fence	w, o
	#NO_APP
.LBB2_7:
	sw	a0, 20(a1)
	sw	a0, 32(a1)
	ret
.Lfunc_end2:
	.size	npu_generated_loose_tail_step, .Lfunc_end2-npu_generated_loose_tail_step
	.cfi_endproc
                                        # -- End function
	.type	command0,@object                # @command0
	.data
	.p2align	6, 0x0
command0:
	.word	12                              # 0xc
	.word	0                               # 0x0
	.word	2155872256                      # 0x80800000
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	2155876352                      # 0x80801000
	.word	0                               # 0x0
	.word	1                               # 0x1
	.word	16                              # 0x10
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.size	command0, 64

	.type	command1,@object                # @command1
	.p2align	6, 0x0
command1:
	.word	12                              # 0xc
	.word	0                               # 0x0
	.word	2155872256                      # 0x80800000
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	2155880448                      # 0x80802000
	.word	0                               # 0x0
	.word	2                               # 0x2
	.word	16                              # 0x10
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.word	0                               # 0x0
	.size	command1, 64

	.section	".note.GNU-stack","",@progbits
