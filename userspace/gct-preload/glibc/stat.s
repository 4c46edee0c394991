# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Functions that programs linked into themselves before glibc 2.33: libc had only these, which take
# the version of the structure first. Version 1 is the only one on x86-64.

	.macro	old name, by
	.globl	\name
	.hidden	\name
	.type	\name, @function
\name:	mov	%rsi, %rdx
	mov	%rdi, %rsi
	mov	$1, %edi
	jmp	*\by@GOTPCREL(%rip)
	.size	\name, . - \name
	.endm

	.text
	old	stat64, __xstat64
	old	lstat64, __lxstat64
	old	fstat64, __fxstat64
	old	stat, __xstat64
	old	fstat, __fxstat64
	.section .note.GNU-stack, "", @progbits
