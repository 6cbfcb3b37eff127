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
 * A read of shared memory whose writes nobody is told of, as that of tmpfs, maps it
 * writable, with the pages around it. Where the hardware makes an entry dirty, the
 * atomic then takes no second fault, and neither does the first access to each of
 * the other pages. A write would map one page only.
 *
 * The signal that a fault may end in is made from what the hardware reported.
 * Where the write fails, the fault is handled as the reported read after all: the
 * instruction then takes its own write fault, and the signal says so. So it is where
 * the page that a load-exclusive would get cannot be allocated. That is rare: before
 * it fails, the allocation reclaims memory and has tasks killed, as it does for a store.
 */
#define pr_fmt(fmt) "atomic-write-fault: " fmt

#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/jump_label.h>
#include <linux/kstrtox.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmu_context.h>
#include <linux/pgtable.h>
#include <linux/printk.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>

#include <asm/insn-rmw.h>
#include <asm/pgtable-hwdef.h>
#include <asm/ptrace.h>
#include <asm/sysreg.h>

#include "atomic_write_fault.h"

/* Enabled before user space runs, unless the feature is switched off. */
DEFINE_STATIC_KEY_FALSE_RO(arm64_rmw_fault_key);

static bool atomic_write_fault __initdata = true;
static bool exclusive_write_fault __ro_after_init = true;

/*
 * The entry of the last level for an address, or that of a higher level if the walk
 * ends there; 0 if it ends at an empty one. Tables may be freed meanwhile, but not
 * before this CPU takes interrupts again, as for every walk that takes no lock.
 */
static u64 last_entry(struct mm_struct *mm, unsigned long addr)
{
	pgd_t *pgdp = pgd_offset(mm, addr), pgd = READ_ONCE(*pgdp);
	p4d_t *p4dp, p4d;
	pud_t *pudp, pud;
	pmd_t *pmdp, pmd;

	if (pgd_none(pgd))
		return 0;
	p4dp = p4d_offset_lockless(pgdp, pgd, addr);
	p4d = READ_ONCE(*p4dp);
	if (p4d_none(p4d))
		return 0;
	pudp = pud_offset_lockless(p4dp, p4d, addr);
	pud = READ_ONCE(*pudp);
	if (pud_none(pud) || pud_leaf(pud))
		return pud_val(pud);
	pmdp = pmd_offset_lockless(pudp, pud, addr);
	pmd = READ_ONCE(*pmdp);
	if (!pmd_table(pmd))
		return pmd_val(pmd);

	return pte_val(__ptep_get(pte_offset_kernel(&pmd, addr)));
}

/*
 * Is nothing mapped at an address, and nothing swapped out, moved or hidden?
 *
 * Only the entry tells. A page that is swapped out, that is being moved or that NUMA
 * balancing hides takes a translation fault as untouched memory does.
 *
 * The answer may be out of date when it is given, which is as if the fault had been taken
 * earlier. Some who change the entry of a page empty it for a moment: reclaim, migration,
 * KSM, the scan of NUMA balancing, copy-on-write by another thread, and what folds
 * contiguous entries. The page may then be found untouched, and a task that only reads
 * gets a copy of it or makes it dirty, or its fault is counted and finds the page there.
 */
static bool is_untouched(struct mm_struct *mm, unsigned long addr)
{
	unsigned long flags;
	u64 entry;

	local_irq_save(flags);
	entry = last_entry(mm, addr);
	local_irq_restore(flags);

	return !entry;
}

/* Does a read map what the hardware can then write to? */
static bool read_maps_writable(struct vm_area_struct *vma)
{
	/*
	 * The protection of other shared mappings is without PTE_WRITE. TCR_EL1.HD
	 * tells of this CPU alone, as each has it set that can. A task that has moved
	 * to another one takes the second fault, or takes one for each page.
	 */
	return vma->vm_flags & VM_SHARED && pgprot_val(vma->vm_page_prot) & PTE_WRITE &&
	       read_sysreg(tcr_el1) & TCR_HD;
}

static bool may_force_write(struct vm_area_struct *vma, unsigned long addr,
			    struct pt_regs *regs, enum aarch64_insn_rmw rmw)
{
	/* What was decoded as A64 is an A32 or T32 instruction. */
	if (compat_user_mode(regs))
		return false;

	if (read_maps_writable(vma))
		return false;

	/*
	 * A monitor must not hear of a write that may never come. In a droppable
	 * mapping a write that gets no page is no error but tried again for ever.
	 */
	if (rmw == AARCH64_INSN_RMW_EXCLUSIVE &&
	    (!exclusive_write_fault || !vma_is_anonymous(vma) ||
	     vma->vm_flags & VM_DROPPABLE || userfaultfd_armed(vma) ||
	     !is_untouched(vma->vm_mm, addr)))
		return false;

	/*
	 * A write that the protection key forbids stays a read: an atomic then
	 * reports its own write, and a load-exclusive need not fail.
	 */
	return arch_vma_access_permitted(vma, true, false, false);
}

/*
 * handle_mm_fault() has counted an attempt that failed, and will count the one that
 * follows. To user space they are one fault. What is counted elsewhere, by perf and
 * for the task, is only what succeeds.
 */
static void uncount_fault(struct mm_struct *mm)
{
	count_vm_events(PGFAULT, -1);
	count_memcg_events_mm(mm, PGFAULT, -1);
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

	/* A retry or completion has dropped the lock. */
	if (fault & (VM_FAULT_RETRY | VM_FAULT_COMPLETED))
		goto out;

	/* Out of memory is retried, until who will write has its page. A read needs none. */
	if (fault & VM_FAULT_OOM && rmw == AARCH64_INSN_RMW_ATOMIC)
		goto out;

	if (unlikely(fault & VM_FAULT_ERROR)) {
		uncount_fault(vma->vm_mm);
		/* A cgroup may be waiting for the task to take note; the read has its own. */
		if (task_in_memcg_oom(current))
			mem_cgroup_oom_synchronize(false);
		return handle_mm_fault(vma, addr, flags, regs);
	}
out:
	/*
	 * A fault is counted when it is complete. One that mapped nothing, because somebody else
	 * did, cannot be told from one that did. It counts again if it is taken again.
	 */
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
