/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Populate on the first fault of an atomic read-modify-write: the part of the
 * page fault path that runs for every fault. See mm/atomic_write_fault.c.
 */
#ifndef __ASM_ATOMIC_WRITE_FAULT_H
#define __ASM_ATOMIC_WRITE_FAULT_H

#include <linux/mm.h>

#ifdef CONFIG_ARM64_ATOMIC_WRITE_FAULT

#include <linux/jump_label.h>
#include <linux/ptrace.h>
#include <linux/uaccess.h>

#include <asm/alternative.h>
#include <asm/insn-rmw.h>
#include <asm/sysreg.h>

DECLARE_STATIC_KEY_TRUE(arm64_atomic_write_fault_enabled);

vm_fault_t arm64_handle_rmw_fault(struct vm_area_struct *vma,
				  unsigned long addr, unsigned int flags,
				  struct pt_regs *regs,
				  enum aarch64_insn_rmw rmw);

/*
 * Classify the instruction that user space was executing. The caller may hold
 * a VMA lock or the mmap lock, so the load must neither sleep nor have its own
 * fault handled: page faults are disabled around it, and whatever makes it fail
 * (execute-only text, a page reclaimed since) counts as "no read-modify-write".
 *
 * Instruction fetches carry no tag, text may: the load is not tag-checked.
 * The PC of a task whose data access faulted was fetched from, so it is a user
 * address; unsafe_get_user() masks it anyway, and access_ok() is not needed.
 */
static __always_inline enum aarch64_insn_rmw
arm64_user_insn_rmw(struct pt_regs *regs)
{
	enum aarch64_insn_rmw rmw = AARCH64_INSN_RMW_NONE;
	__le32 insn;

	pagefault_disable();
	asm volatile(ALTERNATIVE("nop", SET_PSTATE_TCO(1),
				 ARM64_MTE, CONFIG_ARM64_MTE));
	uaccess_ttbr0_enable();
	unsafe_get_user(insn, (__le32 __user *)instruction_pointer(regs), out);
	rmw = aarch64_insn_rmw_class(le32_to_cpu(insn));
out:
	uaccess_ttbr0_disable();
	asm volatile(ALTERNATIVE("nop", SET_PSTATE_TCO(0),
				 ARM64_MTE, CONFIG_ARM64_MTE));
	pagefault_enable();

	return rmw;
}

/**
 * arm64_handle_mm_fault() - handle_mm_fault(), but a read fault taken by a
 *			     read-modify-write instruction is handled as a write
 * @vma: the VMA that contains @addr, access-checked for the reported access
 * @addr: the faulting address, untagged
 * @flags: FAULT_FLAG_*, as reported by the hardware
 * @regs: the registers at the fault
 *
 * Only a user data read fault in a writable VMA is looked at; every other fault
 * pays three tests. The decision is made anew on each call, because a retried
 * fault may find another VMA.
 *
 * Context: as handle_mm_fault(): process context, the VMA lock or the mmap read
 *	    lock held; may sleep and may release the lock.
 * Return: what handle_mm_fault() returns.
 */
static __always_inline vm_fault_t
arm64_handle_mm_fault(struct vm_area_struct *vma, unsigned long addr,
		      unsigned int flags, struct pt_regs *regs)
{
	const unsigned int kind = FAULT_FLAG_USER | FAULT_FLAG_WRITE |
				  FAULT_FLAG_INSTRUCTION;

	if (static_branch_likely(&arm64_atomic_write_fault_enabled) &&
	    (flags & kind) == FAULT_FLAG_USER && (vma->vm_flags & VM_WRITE)) {
		enum aarch64_insn_rmw rmw = arm64_user_insn_rmw(regs);

		if (rmw != AARCH64_INSN_RMW_NONE)
			return arm64_handle_rmw_fault(vma, addr, flags, regs,
						      rmw);
	}

	return handle_mm_fault(vma, addr, flags, regs);
}

#else /* CONFIG_ARM64_ATOMIC_WRITE_FAULT */

static inline vm_fault_t
arm64_handle_mm_fault(struct vm_area_struct *vma, unsigned long addr,
		      unsigned int flags, struct pt_regs *regs)
{
	return handle_mm_fault(vma, addr, flags, regs);
}

#endif /* CONFIG_ARM64_ATOMIC_WRITE_FAULT */

#endif /* __ASM_ATOMIC_WRITE_FAULT_H */
