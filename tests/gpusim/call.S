/* The exported entry points. Each goes on to the room's own function, sim_NAME, at once; with
   switches that care about calls (calls.c) it first asks gpusim_call_enter, which may answer in the
   room's place. Arguments, on the stack too, arrive untouched. The rooms call each other directly,
   so only the program's own calls pass here. */
#ifndef __x86_64__
#error "the simulated driver's entry points are written for x86-64"
#endif
	.section .note.GNU-stack,"",@progbits
	.text
	.hidden gpusim_calls_watched
	.hidden gpusim_call_enter
	.p2align 4
	.type watched,@function
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
	.type \name,@function
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
