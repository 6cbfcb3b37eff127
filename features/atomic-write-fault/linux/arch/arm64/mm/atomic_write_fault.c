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
 * in the fault path (atomic_write_fault.h), which also rejects plain loads. What
 * is left is classified (asm/insn-rmw.h) and decided on here.
 *
 * A load-exclusive stores nothing itself, but it begins the read-modify-write of
 * code without LSE atomics. It is handled as a write in anonymous memory only,
 * and only where nothing is mapped or swapped out. There, one that no
 * store-exclusive follows (a wait loop) reads the same values from a page of its
 * own as from the zero page. Of memory that has contents, a page that is shared
 * since fork() would be copied for a task that only reads, and one that is clean,
 * because it is swapped in or because of MADV_FREE, would become dirty. In a
 * private file mapping it would stop seeing changes of the file, in a shared one
 * it would dirty it, and in a hugetlb mapping it could find the pool empty.
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
#include <linux/pgtable.h>
#include <linux/printk.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>

#include <asm/insn-rmw.h>
#include <asm/ptrace.h>

#include "atomic_write_fault.h"

/* Enabled before user space runs, unless the feature is switched off. */
DEFINE_STATIC_KEY_FALSE_RO(arm64_rmw_fault_key);

static bool atomic_write_fault __initdata = true;
static bool exclusive_write_fault __ro_after_init = true;

/*
 * Is nothing mapped at an address, and nothing swapped out? The VMA or the mmap is
 * locked, so tables of the upper levels stay; pte_offset_map() sees to the last one.
 * The answer may be out of date when it is given, which is as if the fault had been
 * taken earlier.
 */
static bool is_untouched(struct vm_area_struct *vma, unsigned long addr)
{
	pgd_t *pgdp = pgd_offset(vma->vm_mm, addr);
	p4d_t *p4dp;
	pud_t *pudp, pud;
	pmd_t *pmdp, pmd;
	pte_t *ptep;
	bool none;

	if (pgd_none(READ_ONCE(*pgdp)))
		return true;
	p4dp = p4d_offset(pgdp, addr);
	if (p4d_none(READ_ONCE(*p4dp)))
		return true;
	pudp = pud_offset(p4dp, addr);
	pud = READ_ONCE(*pudp);
	if (pud_none(pud))
		return true;
	if (pud_leaf(pud))
		return false;
	pmdp = pmd_offset(pudp, addr);
	pmd = pmdp_get_lockless(pmdp);
	if (pmd_none(pmd))
		return true;

	/* NULL for a huge page, and for a table that has just become one. */
	ptep = pte_offset_map(pmdp, addr);
	if (!ptep)
		return false;
	none = pte_none(ptep_get_lockless(ptep));
	pte_unmap(ptep);

	return none;
}

static bool may_force_write(struct vm_area_struct *vma, unsigned long addr,
			    struct pt_regs *regs, enum aarch64_insn_rmw rmw)
{
	/* What was decoded as A64 is an A32 or T32 instruction. */
	if (compat_user_mode(regs))
		return false;

	/* A monitor of writes must not hear of one that may never come. */
	if (rmw == AARCH64_INSN_RMW_EXCLUSIVE &&
	    (!exclusive_write_fault || !vma_is_anonymous(vma) ||
	     userfaultfd_wp(vma) || !is_untouched(vma, addr)))
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

	if (rmw == AARCH64_INSN_RMW_NONE || !may_force_write(vma, addr, regs, rmw))
		return handle_mm_fault(vma, addr, flags, regs);

	fault = handle_mm_fault(vma, addr, flags | FAULT_FLAG_WRITE, regs);

	/* Out of memory is retried; a retry or completion has dropped the lock. */
	if (fault & (VM_FAULT_OOM | VM_FAULT_RETRY | VM_FAULT_COMPLETED))
		goto out;

	/*
	 * handle_mm_fault() counts the attempt that failed in PGFAULT, and the
	 * one that follows, too. Perf's events and those of the task count only
	 * what succeeds.
	 */
	if (unlikely(fault & VM_FAULT_ERROR))
		return handle_mm_fault(vma, addr, flags, regs);
out:
	/* A fault is counted when it is complete, and once. */
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

/* No user space runs yet. */
static int __init atomic_write_fault_init(void)
{
	if (!atomic_write_fault) {
		pr_info("off (arm64.atomic_write_fault=0)\n");
		return 0;
	}

	static_branch_enable(&arm64_rmw_fault_key);

	if (exclusive_write_fault)
		pr_info("on for atomics and load-exclusives\n");
	else
		pr_info("on for atomics, off for load-exclusives (arm64.atomic_write_fault_exclusive=0)\n");

	return 0;
}
core_initcall(atomic_write_fault_init);
