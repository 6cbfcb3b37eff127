// SPDX-License-Identifier: GPL-2.0-only
/*
 * Checker of changes of valid kernel page-table entries.
 *
 * The architecture wants break-before-make for most changes of a valid entry: write an
 * invalid one, invalidate the TLB, write the new one. Code that changes a live mapping of
 * the kernel cannot do that while the mapping is in use, so it must know which changes
 * are legal without. When it is wrong nothing happens, on most machines, most of the
 * time; an emulator never notices. This checker looks at every write of a valid entry
 * over a valid one, and warns with both descriptors if the change
 *
 *  - has another output address, unless both entries are read-only and the memory at
 *    both addresses has the same contents, or all other CPUs are kept away;
 *  - has another memory type or shareability, but for Normal and Normal Tagged;
 *  - goes from not global to global;
 *  - makes leaves larger or smaller, table and contiguous bit included, where not all
 *    CPUs that may see it have BBM level 2 without aborts; or where they have, but the
 *    new entry does not translate every address like the old one;
 *  - exchanges one table for another.
 *
 * It is for kernel mappings: entries of user space are changed with the help of mmu
 * notifiers and are not looked at. Writes that do not go through the functions of
 * pgtable.h are not seen: those of the early boot code and of assembly code.
 *
 * It costs a static branch for each entry that is written, and is switched on with
 * pgtable_transition_check=on.
 */
#define pr_fmt(fmt) "pgtable_transition: " fmt

#include <kunit/static_stub.h>

#include <linux/atomic.h>
#include <linux/debugfs.h>
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/string.h>

#include <asm/bbml2.h>
#include <asm/pgtable-transition.h>

#include "pgtable_transition.h"

DEFINE_STATIC_KEY_FALSE(pgtable_transition_key);

/* How many callers keep all other CPUs away from what they change. */
static atomic_t paused = ATOMIC_INIT(0);

/* So many violations are reported: the first ones tell, and a loop would flood. */
#define MAX_REPORTS	16
static atomic_t reports = ATOMIC_INIT(0);

#define PTE_TYPE_BITS	(PTE_TYPE_MASK | PTE_CONT)
#define PERMISSIONS	(PTE_PXN | PTE_UXN | PTE_RDONLY | PTE_WRITE | PTE_AF | PTE_GP | \
			 PTE_SWBITS_MASK)

/* A page at the last level, a block above it. */
static bool is_leaf(u64 desc, unsigned int shift)
{
	return shift == PAGE_SHIFT || !(desc & PTE_TABLE_BIT);
}

static bool is_kernel_leaf(u64 desc, unsigned int shift)
{
	return is_leaf(desc, shift) && (desc & PTE_UXN) && !(desc & PTE_USER);
}

static phys_addr_t output_address(u64 desc)
{
	return __pte_to_phys(__pte(desc));
}

static u64 attributes(u64 desc)
{
	return pgprot_val(pte_pgprot(__pte(desc)));
}

static bool is_normal_memory(u64 desc)
{
	u64 index = desc & PTE_ATTRINDX_MASK;

	return index == PTE_ATTRINDX(MT_NORMAL) || index == PTE_ATTRINDX(MT_NORMAL_TAGGED);
}

/* Both leaves of the same size and read-only: may the one take the other's place? */
static bool same_contents(u64 old, u64 new, unsigned int shift)
{
	if (((old | new) & PTE_WRITE) || !(old & new & PTE_RDONLY))
		return false;

	return pfn_valid(PHYS_PFN(output_address(old))) &&
	       pfn_valid(PHYS_PFN(output_address(new))) &&
	       !memcmp(__va(output_address(old)), __va(output_address(new)), 1UL << shift);
}

/* Does every entry of a table translate like its part of a leaf that spans the table? */
static bool same_translation(u64 table, u64 leaf, unsigned int shift)
{
	unsigned int entry_shift = shift - (PAGE_SHIFT - 3);
	const u64 *entries = __va(output_address(table));
	unsigned int i;

	for (i = 0; i < PTRS_PER_PTE; i++) {
		u64 entry = READ_ONCE(entries[i]);

		if (!(entry & PTE_VALID) || !is_leaf(entry, entry_shift) ||
		    output_address(entry) != output_address(leaf) + ((u64)i << entry_shift) ||
		    ((attributes(entry) ^ attributes(leaf)) & ~PTE_TYPE_BITS))
			return false;
	}

	return true;
}

/**
 * pgtable_transition_error() - what is wrong with a change of a valid kernel entry?
 * @old: the valid descriptor that is there
 * @new: the valid descriptor that is to replace it
 * @shift: the entry maps 1 << @shift bytes
 * @bbml2: may sizes be changed live by the CPUs that can see the change?
 * @paused: are all other CPUs kept away, and the TLBs invalidated before they go on?
 *
 * Context: any. Reads the memory that the descriptors point at, if it has to.
 * Return: NULL if nothing is, or else what.
 */
const char *pgtable_transition_error(u64 old, u64 new, unsigned int shift, bool bbml2,
				     bool paused)
{
	bool old_leaf = is_leaf(old, shift), new_leaf = is_leaf(new, shift);
	u64 changed = attributes(old) ^ attributes(new);

	if (!old_leaf && !new_leaf)
		return output_address(old) == output_address(new) ? NULL :
		       "one table is exchanged for another";

	if (old_leaf != new_leaf) {
		if (!bbml2)
			return "size changes without break-before-make level 2";
		if (!same_translation(old_leaf ? new : old, old_leaf ? old : new, shift))
			return "size changes, and with it the translation";
		return NULL;
	}

	if (output_address(old) != output_address(new) && !paused &&
	    !same_contents(old, new, shift))
		return "output address changes";
	if ((changed & PTE_CONT) && !bbml2)
		return "contiguous bit changes without break-before-make level 2";
	if ((old & new & PTE_CONT) && !bbml2)
		return "live contiguous range changes without break-before-make level 2";
	if ((changed & PTE_NG) && (old & PTE_NG))
		return "becomes global";
	if ((changed & PTE_ATTRINDX_MASK) && !(is_normal_memory(old) && is_normal_memory(new)))
		return "memory type changes";
	if (changed & ~(PERMISSIONS | PTE_CONT | PTE_NG | PTE_ATTRINDX_MASK))
		return "attributes change that are no permissions";

	return NULL;
}

/* May the CPUs that can see a change now take a change of size? */
static bool sizes_may_change(void)
{
	if (atomic_read(&paused))
		return cpu_has_bbml2_noabort();
	if (!system_capabilities_finalized())
		return num_online_cpus() == 1 && cpu_has_bbml2_noabort();

	return system_supports_bbml2_noabort();
}

/* Tests look at what is reported in place of the log. */
void report_pgtable_transition(const void *entry, u64 old, u64 new, unsigned int shift,
			       const char *error)
{
	KUNIT_STATIC_STUB_REDIRECT(report_pgtable_transition, entry, old, new, shift, error);

	if (atomic_inc_return(&reports) <= MAX_REPORTS)
		WARN(1, "page-table entry at %p, which maps 2^%u bytes: %016llx -> %016llx: %s\n",
		     entry, shift, old, new, error);
}

/**
 * __check_pgtable_transition() - check a change of an entry from valid to valid
 * @entry: where it is
 * @old: what is there
 * @new: what is to replace it
 * @shift: the entry maps 1 << @shift bytes
 *
 * Context: any.
 */
void __check_pgtable_transition(const void *entry, u64 old, u64 new, unsigned int shift)
{
	const char *error;

	if (!is_kernel_leaf(old, shift) && !is_kernel_leaf(new, shift) &&
	    (is_leaf(old, shift) || is_leaf(new, shift)))
		return;

	error = pgtable_transition_error(old, new, shift, sizes_may_change(),
					 atomic_read(&paused));
	if (error)
		report_pgtable_transition(entry, old, new, shift, error);
}

/**
 * pgtable_transition_pause() - from now on only this CPU can see page-table changes
 *
 * All others are kept away from what is going to be changed, and their TLBs will be
 * invalidated before they go on.
 *
 * Context: any.
 */
void pgtable_transition_pause(void)
{
	atomic_inc(&paused);
}

/**
 * pgtable_transition_resume() - the end of what pgtable_transition_pause() began
 *
 * Context: any.
 */
void pgtable_transition_resume(void)
{
	atomic_dec(&paused);
}

static int __init parse_check(char *arg)
{
	bool enable;
	int ret = kstrtobool(arg, &enable);

	if (ret) {
		pr_warn("pgtable_transition_check=%s is neither on nor off: it stays off\n", arg);
		return ret;
	}

	if (enable) {
		static_branch_enable(&pgtable_transition_key);
		pr_info("checking changes of valid kernel entries\n");
	}

	return 0;
}
early_param("pgtable_transition_check", parse_check);

/* Break the rules on purpose, on entries that no CPU uses: does the checker warn? */
static int violate(void *data, u64 val)
{
	pte_t *table = (pte_t *)get_zeroed_page(GFP_KERNEL);
	unsigned long pfn;

	if (!table)
		return -ENOMEM;

	pfn = virt_to_pfn(table);
	__set_pte(table, pfn_pte(pfn, PAGE_KERNEL));
	__set_pte(table, pfn_pte(pfn + 1, PAGE_KERNEL));
	free_page((unsigned long)table);

	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(violate_fops, NULL, violate, "%llu\n");

static int __init pgtable_transition_debugfs(void)
{
	debugfs_create_file_unsafe("pgtable_transition_violate", 0200, NULL, NULL, &violate_fops);

	return 0;
}
late_initcall(pgtable_transition_debugfs);
