// SPDX-License-Identifier: GPL-2.0-only
/*
 * Populate on the first fault of an atomic read-modify-write.
 *
 * The architecture reports a translation fault taken by an atomic
 * read-modify-write instruction as a read when a read would have faulted too.
 * Handled as a read, an untouched private page first gets the shared zero page,
 * read-only; the same instruction then faults a second time, and copy-on-write
 * allocates the page and invalidates the TLB on every CPU. With THP the first
 * fault installs the huge zero page and the second one splits it, so that a
 * huge area is populated page by page.
 *
 * The store is certain, so look ahead: for a user data fault that is reported
 * as a read in a writable VMA, the instruction at the PC is read, and if it is a
 * read-modify-write the fault is handled as a write. The look is inline in the
 * fault path (asm/atomic_write_fault.h), the instructions are told apart by
 * asm/insn-rmw.h, and what happens to a match is decided here.
 *
 * A load-exclusive stores nothing itself, but it begins the read-modify-write of
 * code without LSE atomics. It is handled as a write in private mappings only:
 * there, the worst that a load-exclusive without a store-exclusive (a wait loop)
 * can see is a page of its own instead of the zero page or the page cache's. In
 * a shared mapping a write fault would dirty the file.
 *
 * The signal that a fault may end in is made from what the hardware reported,
 * not from the decision taken here.
 */
#define pr_fmt(fmt) "atomic-write-fault: " fmt

#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/kstrtox.h>
#include <linux/mm.h>
#include <linux/mmu_context.h>
#include <linux/printk.h>
#include <linux/vmstat.h>

#include <asm/atomic_write_fault.h>
#include <asm/ptrace.h>

/* Changed before user space runs, and never after. */
DEFINE_STATIC_KEY_TRUE(arm64_atomic_write_fault_enabled);

static bool atomic_write_fault __initdata = true;
static bool exclusive_write_fault __ro_after_init = true;

/*
 * A write that the VMA's protection key forbids stays a read: the
 * instruction's own store then reports it, and a load-exclusive need not fail.
 */
static bool may_force_write(struct vm_area_struct *vma, struct pt_regs *regs,
			    enum aarch64_insn_rmw rmw)
{
	/* What was decoded as A64 is an A32 or T32 instruction. */
	if (compat_user_mode(regs))
		return false;

	if (rmw == AARCH64_INSN_RMW_EXCLUSIVE &&
	    (!exclusive_write_fault || (vma->vm_flags & VM_SHARED)))
		return false;

	return arch_vma_access_permitted(vma, true, false, false);
}

/**
 * arm64_handle_rmw_fault() - handle a read fault by a read-modify-write
 * @vma: the VMA that contains @addr; writable
 * @addr: the faulting address, untagged
 * @flags: FAULT_FLAG_* of a user data read fault
 * @regs: the registers at the fault
 * @rmw: the class of the instruction at the PC, not AARCH64_INSN_RMW_NONE
 *
 * Context: as handle_mm_fault(): process context, the VMA lock or the mmap read
 *	    lock held; may sleep and may release the lock.
 * Return: what handle_mm_fault() returns.
 */
vm_fault_t arm64_handle_rmw_fault(struct vm_area_struct *vma,
				  unsigned long addr, unsigned int flags,
				  struct pt_regs *regs,
				  enum aarch64_insn_rmw rmw)
{
	vm_fault_t fault;

	if (!may_force_write(vma, regs, rmw))
		return handle_mm_fault(vma, addr, flags, regs);

	fault = handle_mm_fault(vma, addr, flags | FAULT_FLAG_WRITE, regs);

	/* As PGFAULT: a fault is counted when it is complete, and once. */
	if (!(fault & (VM_FAULT_RETRY | VM_FAULT_ERROR)))
		count_vm_event(rmw == AARCH64_INSN_RMW_ATOMIC ?
			       ATOMIC_WRITE_FAULT : EXCLUSIVE_WRITE_FAULT);

	return fault;
}

static int __init parse_switch(const char *name, const char *value, bool *on)
{
	if (value && !kstrtobool(value, on))
		return 0;

	pr_warn("%s=%s is not understood and ignored; use 0 or 1\n",
		name, value ?: "");
	return 0;
}

static int __init parse_atomic_write_fault(char *value)
{
	return parse_switch("arm64.atomic_write_fault", value,
			    &atomic_write_fault);
}
early_param("arm64.atomic_write_fault", parse_atomic_write_fault);

static int __init parse_exclusive_write_fault(char *value)
{
	return parse_switch("arm64.atomic_write_fault_exclusive", value,
			    &exclusive_write_fault);
}
early_param("arm64.atomic_write_fault_exclusive", parse_exclusive_write_fault);

static int __init atomic_write_fault_init(void)
{
	if (!atomic_write_fault) {
		static_branch_disable(&arm64_atomic_write_fault_enabled);
		pr_info("off (arm64.atomic_write_fault=0)\n");
	} else if (!exclusive_write_fault) {
		pr_info("on for atomics, off for load-exclusives (arm64.atomic_write_fault_exclusive=0)\n");
	} else {
		pr_info("on for atomics and load-exclusives\n");
	}

	return 0;
}
core_initcall(atomic_write_fault_init);
