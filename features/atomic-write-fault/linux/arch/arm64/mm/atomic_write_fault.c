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
 * The write permission is needed for certain, so for a user data fault that is
 * reported as a read in a writable VMA the instruction at the PC is read, and if
 * it is a read-modify-write the fault is handled as a write. Reading it is inline
 * in the fault path (atomic_write_fault.h), which also rejects plain loads, in a
 * dozen instructions. What is left is classified (asm/insn-rmw.h) and decided on
 * here.
 *
 * A load-exclusive stores nothing itself, but it begins the read-modify-write of
 * code without LSE atomics. It is handled as a write in anonymous memory only.
 * There, one that no store-exclusive follows (a wait loop) reads the same values
 * from a page of its own as from the zero page. In a private file mapping it
 * would stop seeing changes of the file, in a shared one it would dirty it, and
 * in a hugetlb mapping it could find the pool empty.
 *
 * The signal that a fault may end in is made from what the hardware reported.
 * Where the write fails, the fault is handled as the reported read after all: the
 * instruction then takes its own write fault, and the signal says so.
 */
#define pr_fmt(fmt) "atomic-write-fault: " fmt

#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/kstrtox.h>
#include <linux/mm.h>
#include <linux/mmu_context.h>
#include <linux/printk.h>
#include <linux/uaccess.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>

#include <asm/cpufeature.h>
#include <asm/insn-rmw.h>
#include <asm/ptrace.h>

#include "atomic_write_fault.h"

/* Enabled, if at all, before user space runs. */
DEFINE_STATIC_KEY_FALSE_RO(arm64_rmw_fault_key);
DEFINE_STATIC_KEY_FALSE_RO(arm64_rmw_fault_sw_pan_key);

static bool atomic_write_fault __initdata = true;
static bool exclusive_write_fault __ro_after_init = true;

static bool may_force_write(struct vm_area_struct *vma, struct pt_regs *regs,
			    enum aarch64_insn_rmw rmw)
{
	/* What was decoded as A64 is an A32 or T32 instruction. */
	if (compat_user_mode(regs))
		return false;

	/* A monitor of writes must not hear of one that may never come. */
	if (rmw == AARCH64_INSN_RMW_EXCLUSIVE &&
	    (!exclusive_write_fault || !vma_is_anonymous(vma) ||
	     userfaultfd_wp(vma)))
		return false;

	/*
	 * A write that the protection key forbids stays a read: an atomic then
	 * reports its own write, and a load-exclusive need not fail.
	 */
	return arch_vma_access_permitted(vma, true, false, false);
}

/**
 * arm64_handle_rmw_fault() - handle a read fault, as a write if @insn will write
 * @vma: the VMA that contains @addr; writable
 * @addr: the faulting address, untagged
 * @flags: FAULT_FLAG_* of a user data fault that was reported as a read
 * @regs: the registers at the fault
 * @insn: the instruction at the PC
 *
 * Context: as handle_mm_fault(): process context, the VMA lock or the mmap read
 *	    lock held; may sleep and may release the lock.
 * Return: what handle_mm_fault() returns.
 */
vm_fault_t arm64_handle_rmw_fault(struct vm_area_struct *vma,
				  unsigned long addr, unsigned int flags,
				  struct pt_regs *regs, u32 insn)
{
	enum aarch64_insn_rmw rmw = aarch64_insn_rmw_class(insn);
	vm_fault_t fault;

	if (rmw == AARCH64_INSN_RMW_NONE || !may_force_write(vma, regs, rmw))
		return handle_mm_fault(vma, addr, flags, regs);

	fault = handle_mm_fault(vma, addr, flags | FAULT_FLAG_WRITE, regs);

	/* Out of memory is retried; a retry or completion has dropped the lock. */
	if (fault & (VM_FAULT_OOM | VM_FAULT_RETRY | VM_FAULT_COMPLETED))
		goto out;

	if (unlikely(fault & VM_FAULT_ERROR))
		return handle_mm_fault(vma, addr, flags, regs);
out:
	/* A fault is counted when it is complete, and once. */
	if (!(fault & (VM_FAULT_RETRY | VM_FAULT_ERROR)))
		count_vm_event(rmw == AARCH64_INSN_RMW_ATOMIC ?
			       ATOMIC_WRITE_FAULT : EXCLUSIVE_WRITE_FAULT);

	return fault;
}

/**
 * arm64_handle_rmw_fault_sw_pan() - the same, with the instruction still to be
 *				     read, where PAN is done in software
 * @vma: the VMA that contains @addr; writable
 * @addr: the faulting address, untagged
 * @flags: FAULT_FLAG_* of a user data fault that was reported as a read
 * @regs: the registers at the fault
 *
 * Context: as handle_mm_fault(): process context, the VMA lock or the mmap read
 *	    lock held; may sleep and may release the lock.
 * Return: what handle_mm_fault() returns.
 */
vm_fault_t arm64_handle_rmw_fault_sw_pan(struct vm_area_struct *vma,
					 unsigned long addr, unsigned int flags,
					 struct pt_regs *regs)
{
	u32 insn;

	pagefault_disable();
	uaccess_ttbr0_enable();
	insn = __arm64_user_insn(regs);
	uaccess_ttbr0_disable();
	pagefault_enable();

	return arm64_handle_rmw_fault(vma, addr, flags, regs, insn);
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

/* CPU capabilities are final, and no user space runs yet. */
static int __init atomic_write_fault_init(void)
{
	if (!atomic_write_fault) {
		pr_info("off (arm64.atomic_write_fault=0)\n");
		return 0;
	}

	if (system_uses_ttbr0_pan())
		static_branch_enable(&arm64_rmw_fault_sw_pan_key);
	else
		static_branch_enable(&arm64_rmw_fault_key);

	if (exclusive_write_fault)
		pr_info("on for atomics and load-exclusives\n");
	else
		pr_info("on for atomics, off for load-exclusives (arm64.atomic_write_fault_exclusive=0)\n");

	return 0;
}
core_initcall(atomic_write_fault_init);
