/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Populate on the first fault of an atomic read-modify-write: the part of the
 * page fault path that runs for every fault. See atomic_write_fault.c.
 *
 * For do_page_fault() only, which guarantees what is said below.
 */
#ifndef __ARM64_MM_ATOMIC_WRITE_FAULT_H
#define __ARM64_MM_ATOMIC_WRITE_FAULT_H

#include <linux/mm.h>

#ifdef CONFIG_ARM64_ATOMIC_WRITE_FAULT

#include <linux/jump_label.h>
#include <linux/ptrace.h>
#include <linux/uaccess.h>

#include <asm/asm-extable.h>
#include <asm/insn-rmw.h>

DECLARE_STATIC_KEY_FALSE(arm64_rmw_fault_key);

vm_fault_t arm64_handle_rmw_fault(struct vm_area_struct *vma,
				  unsigned long addr, unsigned int flags,
				  struct pt_regs *regs, u32 insn);

/*
 * Read the instruction that user space was executing; 0, which is UDF and no
 * read-modify-write, if that takes a fault. A VMA or the mmap is locked, so the load
 * must neither sleep nor have its own fault handled: page faults are disabled. An
 * external abort is no such fault. The kernel dies of it, as in any get_user().
 *
 * The PC of a task whose data access faulted has just been fetched from, so it is
 * a user address: nobody chose it for this load, and it needs neither access_ok()
 * nor the mask against speculation. It has no tag, but text may: with synchronous
 * tag checks that is one more fault here and so no match, and what an asynchronous
 * check records in the kernel is cleared on the way back to user space, as after
 * any user access.
 *
 * This is __raw_get_user() without its error, which is 0 here: to set it, and to look at it,
 * is some instructions of each read fault.
 */
static __always_inline u32 arm64_user_insn(struct pt_regs *regs)
{
	__le32 insn;

	pagefault_disable();
	uaccess_ttbr0_enable();
	asm volatile("1:	ldtr	%w[insn], [%[pc]]\n"
		     "2:\n"
		     _ASM_EXTABLE_UACCESS_ERR_ZERO(1b, 2b, wzr, %w[insn])
		     : [insn] "=r" (insn)
		     : [pc] "r" (regs->pc));
	uaccess_ttbr0_disable();
	pagefault_enable();

	return le32_to_cpu(insn);
}

/* A user data fault that was reported as a read, in a VMA that can be written. */
static __always_inline bool
arm64_may_be_rmw_fault(struct vm_area_struct *vma, unsigned int flags,
		       unsigned long access)
{
	return (flags & FAULT_FLAG_USER) && (access & VM_READ) &&
	       (vma->vm_flags & VM_WRITE);
}

/**
 * arm64_handle_mm_fault() - handle_mm_fault(), but a read fault taken by a
 *			     read-modify-write instruction is handled as a write
 * @vma: the VMA that contains @addr, access-checked for @access
 * @addr: the faulting address, untagged
 * @flags: FAULT_FLAG_*, as reported by the hardware
 * @access: the VM_* of which @vma has to have one; has VM_READ only for a data
 *	    fault that was reported as a read
 * @regs: the registers at the fault
 *
 * The decision is made anew on each call, because a retried fault may find
 * another VMA.
 *
 * Context: as handle_mm_fault(): process context, the VMA lock or the mmap read
 *	    lock held; may sleep and may release the lock.
 * Return: what handle_mm_fault() returns.
 */
static __always_inline vm_fault_t
arm64_handle_mm_fault(struct vm_area_struct *vma, unsigned long addr,
		      unsigned int flags, unsigned long access,
		      struct pt_regs *regs)
{
	if (static_branch_likely(&arm64_rmw_fault_key) &&
	    arm64_may_be_rmw_fault(vma, flags, access)) {
		u32 insn = arm64_user_insn(regs);

		if (unlikely(aarch64_insn_may_be_rmw(insn)))
			return arm64_handle_rmw_fault(vma, addr, flags, regs,
						      insn);
	}

	return handle_mm_fault(vma, addr, flags, regs);
}

#else /* CONFIG_ARM64_ATOMIC_WRITE_FAULT */

static inline vm_fault_t
arm64_handle_mm_fault(struct vm_area_struct *vma, unsigned long addr,
		      unsigned int flags, unsigned long access,
		      struct pt_regs *regs)
{
	return handle_mm_fault(vma, addr, flags, regs);
}

#endif /* CONFIG_ARM64_ATOMIC_WRITE_FAULT */

#endif /* __ARM64_MM_ATOMIC_WRITE_FAULT_H */
