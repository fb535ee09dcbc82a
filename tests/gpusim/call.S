/* The exported entry points. Each goes on to the room's own function, sim_NAME, at once; with
   switches that care about calls (calls.c) it first asks gpusim_call_enter, which may answer in the
   room's place. Arguments, on the stack too, arrive untouched. The rooms call each other directly,
   so only the program's own calls pass here. */
	.section .note.GNU-stack,"",%progbits
	.text
	.hidden gpusim_calls_watched
	.hidden gpusim_call_enter
	.p2align 4
	.type watched,%function

#if defined(__x86_64__)
/* r11: the room's function, r10d: the call's number. */
watched:
	.cfi_startproc
	.irp register, rdi, rsi, rdx, rcx, r8, r9, r11
	pushq %\register
	.cfi_adjust_cfa_offset 8
	.endr
	movl %r10d, %edi
	call gpusim_call_enter
	.irp register, r11, r9, r8, rcx, rdx, rsi, rdi
	popq %\register
	.cfi_adjust_cfa_offset -8
	.endr
	testl %eax, %eax
	jnz 1f
	jmp *%r11
1:	ret
	.cfi_endproc
	.size watched, .-watched

	.macro CALL name number
	.globl \name
	.hidden sim_\name
	.type \name,%function
	.p2align 4
\name:
	.cfi_startproc
	cmpb $0, gpusim_calls_watched(%rip)
	jne 1f
	jmp sim_\name
1:	leaq sim_\name(%rip), %r11
	movl $\number, %r10d
	jmp watched
	.cfi_endproc
	.size \name, .-\name
	.endm

#elif defined(__aarch64__)
/* x16: the room's function, w17: the call's number. */
watched:
	.cfi_startproc
	stp x29, x30, [sp, #-96]!
	.cfi_def_cfa_offset 96
	.cfi_offset 29, -96
	.cfi_offset 30, -88
	stp x0, x1, [sp, #16]
	stp x2, x3, [sp, #32]
	stp x4, x5, [sp, #48]
	stp x6, x7, [sp, #64]
	str x16, [sp, #80]
	mov w0, w17
	bl gpusim_call_enter
	mov w17, w0
	ldp x0, x1, [sp, #16]
	ldp x2, x3, [sp, #32]
	ldp x4, x5, [sp, #48]
	ldp x6, x7, [sp, #64]
	ldr x16, [sp, #80]
	ldp x29, x30, [sp], #96
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	cbnz w17, 1f
	br x16
1:	mov w0, w17
	ret
	.cfi_endproc
	.size watched, .-watched

	.macro CALL name number
	.globl \name
	.hidden sim_\name
	.type \name,%function
	.p2align 4
\name:
	.cfi_startproc
	adrp x16, gpusim_calls_watched
	ldrb w17, [x16, #:lo12:gpusim_calls_watched]
	cbnz w17, 1f
	b sim_\name
1:	adrp x16, sim_\name
	add x16, x16, #:lo12:sim_\name
	mov w17, #\number
	b watched
	.cfi_endproc
	.size \name, .-\name
	.endm

#else
#error "the simulated driver's entry points are written for x86-64 and aarch64"
#endif
