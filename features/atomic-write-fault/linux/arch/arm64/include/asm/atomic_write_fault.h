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
#include <linux/sched.h>
#include <linux/uaccess.h>

#include <asm/asm-extable.h>
#include <asm/insn-rmw.h>

/* At most one of them is on: how to look, or that there is nothing to look for. */
DECLARE_STATIC_KEY_FALSE(arm64_rmw_look_inline);
DECLARE_STATIC_KEY_FALSE(arm64_rmw_look_guarded);

vm_fault_t arm64_handle_rmw_fault(struct vm_area_struct *vma,
				  unsigned long addr, unsigned int flags,
				  struct pt_regs *regs, u32 insn);
vm_fault_t arm64_handle_mm_fault_guarded(struct vm_area_struct *vma,
					 unsigned long addr, unsigned int flags,
					 struct pt_regs *regs);

/*
 * Read the instruction that user space was executing; 0, which is UDF and no
 * read-modify-write, if that takes a fault. Page faults must be disabled.
 *
 * The PC of a task whose data access faulted has been fetched from, so it is a
 * user address; the mask is there as in every user access, for speculation.
 */
static __always_inline u32 __arm64_user_insn(struct pt_regs *regs)
{
	const __le32 __user *pc = (const __le32 __user *)regs->pc;
	__le32 insn;

	asm volatile("1:	ldtr	%w[insn], [%[pc]]\n"
		     "2:\n"
		     _ASM_EXTABLE_UACCESS_ERR_ZERO(1b, 2b, wzr, %w[insn])
		     : [insn] "=&r" (insn)
		     : [pc] "r" (uaccess_mask_ptr(pc)));

	return le32_to_cpu(insn);
}

/*
 * Read it from do_page_fault(), with a VMA or the mmap locked: the load must
 * neither sleep nor have its own fault handled, so page faults are disabled
 * around it. They are known to be enabled, because do_page_fault() has asked, so
 * the count need not be read.
 */
static __always_inline u32 arm64_user_insn(struct pt_regs *regs)
{
	u32 insn;

	current->pagefault_disabled = 1;
	barrier();
	insn = __arm64_user_insn(regs);
	barrier();
	current->pagefault_disabled = 0;

	return insn;
}

/* A user data fault that was reported as a read, in a VMA that can be written. */
static __always_inline bool
arm64_rmw_look_wanted(struct vm_area_struct *vma, unsigned int flags,
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
 * @access: the VM_* of which @vma has to have one; has VM_READ if, and only if,
 *	    the hardware reported a data read
 * @regs: the registers at the fault
 *
 * A plain load pays about a dozen instructions, most other faults two. The
 * decision is made anew on each call, because a retried fault may find another
 * VMA.
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
	if (static_branch_likely(&arm64_rmw_look_inline)) {
		if (arm64_rmw_look_wanted(vma, flags, access)) {
			u32 insn = arm64_user_insn(regs);

			if (unlikely(aarch64_insn_may_be_rmw(insn)))
				return arm64_handle_rmw_fault(vma, addr, flags,
							      regs, insn);
		}
	} else if (static_branch_unlikely(&arm64_rmw_look_guarded)) {
		if (arm64_rmw_look_wanted(vma, flags, access))
			return arm64_handle_mm_fault_guarded(vma, addr, flags,
							     regs);
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

#endif /* __ASM_ATOMIC_WRITE_FAULT_H */
