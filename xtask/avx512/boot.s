# Boot sector: loads CHUNKS times 32 KiB from the disk's second sector to 0x10000, enters 64-bit mode
# with the first GiB mapped to itself, switches on SSE, AVX and AVX-512, and calls what it loaded.
.code16
.globl start
start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw $0x7c00, %sp
    movb %dl, drive
    inb $0x92, %al              # addresses above 1 MiB
    orb $2, %al
    outb %al, $0x92
    movw $CHUNKS, %cx
1:  pushw %cx
    movw $packet, %si           # read 64 sectors
    movb $0x42, %ah
    movb drive, %dl
    int $0x13
    jc stop
    addl $64, packet_sector
    addw $0x800, packet_segment
    popw %cx
    loop 1b
    lgdt table
    movl %cr0, %eax             # protected mode
    orl $1, %eax
    movl %eax, %cr0
    ljmp $8, $protected
stop:
    hlt
    jmp stop

.code32
protected:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $0x1000, %edi          # page tables at 0x1000: 512 pages of 2 MiB
    xorl %eax, %eax
    movl $0xC00, %ecx
    rep stosl
    movl $0x2003, 0x1000
    movl $0x3003, 0x2000
    movl $0x3000, %edi
    movl $0x83, %eax
2:  movl %eax, (%edi)
    addl $8, %edi
    addl $0x200000, %eax
    cmpl $0x4000, %edi
    jb 2b
    movl $0x1000, %eax
    movl %eax, %cr3
    movl $0x40620, %eax         # CR4: PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
    movl %eax, %cr4
    movl $0xC0000080, %ecx      # EFER: long mode
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl $0x80000023, %eax      # CR0: paging, FPU without emulation
    movl %eax, %cr0
    ljmp $24, $long

.code64
long:
    xorl %ecx, %ecx             # XCR0: x87, SSE, AVX, AVX-512
    xorl %edx, %edx
    movl $0xE7, %eax
    xsetbv
    movq $0x600000, %rsp
    movl $0x10000, %eax
    call *%rax

.align 4
descriptors:
    .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff, 0x00af9a000000ffff
table:
    .word 31
    .long descriptors
packet:
    .byte 16, 0
    .word 64, 0
packet_segment:
    .word 0x1000
packet_sector:
    .quad 1
drive:
    .byte 0
.org 510
.word 0xAA55
