/* Every kind of line of a commit log. It ends by a store to tohost. */
    .option norelax
    .globl _start, tohost, fromhost
_start:
    la t0, handler
    csrw mtvec, t0
    li a0, 5
    c.li a5, -3
    c.nop
    la sp, data
    lw a1, 0(sp)
    lb a2, 1(sp)
    lhu sp, 2(sp)                   # overwrites its own base
    la sp, data
    c.lwsp a3, 4(sp)
    sw a0, 8(sp)
    sh a0, 12(sp)
    sb a0, 14(sp)
    c.swsp a5, 16(sp)
    lr.w s0, (sp)
    sc.w s1, a0, (sp)
    sc.w s1, a0, (sp)               # fails
    lr.w s0, (sp)
    sc.w x0, a5, (sp)
    sc.w x0, a5, (sp)               # fails
    amoadd.w t1, a0, (sp)
    amoadd.w sp, a0, (sp)           # overwrites its own base
    la sp, data
    amoswap.w x0, a5, (sp)
    csrr t2, mhartid
    csrrw t3, mscratch, a5
    csrrs t3, mscratch, a0
    csrrs t3, mscratch, x0
    csrrci x0, mscratch, 3
    csrwi mcycle, 5
    csrwi mcycleh, 7
    csrwi minstret, 9
    csrwi minstreth, 1
    csrr t4, minstret
    csrwi mcountinhibit, 5
    csrwi mcountinhibit, 0
    csrw mie, a5
    csrw mip, x0
    csrw mie, x0
    li t5, 0x1880
    csrw mstatus, t5
    csrw mstatush, x0
    csrw mcounteren, a0
    csrw menvcfg, x0
    csrw menvcfgh, x0
    csrw mcause, a5
    csrw mtval, a5
    csrw mepc, a5
    csrwi pmpcfg0, 0x1f
    li t5, -1
    csrw pmpaddr0, t5
    csrw pmpaddr1, a5
    csrwi pmpcfg3, 7
    csrw mhpmcounter3, a5           # printed without the CSR, as all that is constant
    csrw mhpmcounter3h, a5
    csrw mhpmevent3, a5
    csrw tselect, x0
    csrw tdata1, x0
    csrw tdata2, x0
    csrw tdata3, x0
    fence
    fence.i
    cbo.clean (sp)
    cbo.inval (sp)
    ecall                           # what traps is not printed
    .option norvc
    ebreak
    .option rvc
    .word 0xffffffff
    lui s3, 0x6000
    lw s3, 1(s3)                    # traps after its address is known
    .option norvc
    nop
    .option rvc
    la t0, user
    csrw mepc, t0
    li t0, 0x1800
    csrc mstatus, t0
    mret
user:
    csrr t0, instret
    ecall
    beq x0, x0, 1f
    nop
1:  bne x0, x0, 1b
    jal 2f
2:  la t1, 3f
    jalr x0, 1(t1)                  # the target loses its bit 0
3:  c.jal 4f
4:  mul a0, a1, a2
    csrci mstatus, 8
    li t1, 0x80
    csrw mie, t1
    wfi                             # the timer interrupt is pending
    la t1, tohost
    li t2, 1
    sw t2, 0(t1)
    sw x0, 4(t1)
5:  j 5b
    .align 2
handler:
    csrr s0, mepc
    addi s0, s0, 4
    csrw mepc, s0
    csrr s1, mcause
    li s2, 8
    bne s1, s2, 6f                  # ecall from U mode goes on in M mode
    li s2, 0x1800
    csrs mstatus, s2
6:  mret
    .data
    .align 6
data:
    .word 0x12345678, 0x9abcdef0, 0, 0, 0, 0, 0, 0
    .align 6
tohost:
    .dword 0
fromhost:
    .dword 0
