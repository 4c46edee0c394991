// SPDX-License-Identifier: GPL-2.0 OR MIT

// Plays a program of Alpine: musl's loader starts it, and it needs no library. Prints "started".

__asm__(".globl _start\n"
	"_start:\n"
	"	mov	$1, %eax\n"
	"	mov	$1, %edi\n"
	"	lea	text(%rip), %rsi\n"
	"	mov	$8, %edx\n"
	"	syscall\n"
	"	mov	$60, %eax\n"
	"	xor	%edi, %edi\n"
	"	syscall\n"
	"	.section .rodata\n"
	"text:	.ascii	\"started\\n\"\n");
