// SPDX-License-Identifier: GPL-2.0-only
/*
 * Checker of changes of kernel page-table entries.
 *
 * The architecture wants break-before-make for most changes of a valid entry: write an
 * invalid one, invalidate the TLB, write the new one. Code that changes a live mapping of
 * the kernel cannot do that while the mapping is in use, so it must know which changes
 * are legal without. When it is wrong nothing happens, on most machines, most of the
 * time; an emulator never notices. This checker looks at every write of a kernel entry.
 *
 * It warns with both descriptors if a valid entry is written over a valid one, and the
 * change
 *
 *  - has another output address, unless both entries are read-only and the memory at
 *    both addresses has the same contents, or all other CPUs are kept away;
 *  - has another memory type or shareability, but for Normal and Normal Tagged;
 *  - goes from not global to global;
 *  - makes leaves larger or smaller, table and contiguous bit included, where not all
 *    CPUs that may see it have BBM level 2 without aborts; or where they have, but the
 *    new entry does not translate every address like the old one. The attributes of the
 *    table are a part of the translation: they can take permissions away;
 *  - exchanges one table for another, or changes attributes of a table that are no
 *    permissions.
 *
 * A change that would be reported so is legal with break-before-make. It is reported if
 * the entry was made invalid and is made valid again, and no TLB invalidation of kernel
 * addresses has been completed in between. Any such invalidation counts, on any CPU and of
 * any address, so some violations are missed, but none is invented.
 *
 * It warns, too, if the entries of a contiguous range do not belong together. The TLB
 * may take one for all of them, so
 *
 *  - the index of an entry within the range must be that of its output address: the
 *    range has to be aligned to its size in both;
 *  - all entries must have the contiguous bit, the same attributes, and output addresses
 *    one after the other. While a range is written, entry by entry from the first to the
 *    last, those that were written must agree with each other; and who has begun must come
 *    to the last one before invalidating the TLB or writing another entry.
 *
 * pgattr_change_is_safe() is the base kernel's check of what the boot code changes. Every
 * change that it lets pass is legal here too. It refuses some that are legal: those of
 * contiguous entries, which are legal with BBM level 2, of UXN, AF and GP, which are
 * permissions, and of the output address where nobody can tell. It is asked about single
 * descriptors, so it cannot know of tables, of contiguous ranges, and of what was there
 * before an invalid entry.
 *
 * It is for kernel mappings: entries of user space are changed with the help of mmu
 * notifiers and are not looked at. Writes that do not go through the functions of
 * pgtable.h are not seen: those of the early boot code and of assembly code.
 *
 * It costs a static branch for each entry that is written, and is switched on with
 * arm64.pgtable_transition_check=on.
 */
#define pr_fmt(fmt) "pgtable_transition: " fmt

#include <kunit/static_stub.h>

#include <linux/atomic.h>
#include <linux/debugfs.h>
#include <linux/export.h>
#include <linux/hash.h>
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/string.h>

#include <asm/bbml2.h>
#include <asm/pgtable-transition.h>

#include "pgtable_transition.h"

/*
 * Set when all of the static branch is in place. Enabling it patches the kernel's text
 * through the fixmap, and meanwhile some callers report and others do not.
 */
static bool checking __ro_after_init;

DEFINE_STATIC_KEY_FALSE(pgtable_transition_key);
EXPORT_SYMBOL_GPL(pgtable_transition_key);

/* How many callers keep all other CPUs away from what they change. */
static atomic_t paused = ATOMIC_INIT(0);

/* So many violations are reported: the first ones tell, and a loop would flood. */
#define MAX_REPORTS	16
static atomic_t reports = ATOMIC_INIT(0);

/* The bits of a table descriptor that take permissions away from all that it maps. */
#define TABLE_READ_ONLY	(_AT(u64, 1) << 62)
#define TABLE_NO_USER	(_AT(u64, 1) << 61)
#define TABLE_PERMISSIONS (TABLE_READ_ONLY | TABLE_NO_USER | PMD_TABLE_UXN | PMD_TABLE_PXN)
/* All attributes of a table; of the others the hardware uses at most the access flag. */
#define TABLE_ATTRIBUTES GENMASK_ULL(63, 59)

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

/* Tables for user space have PXNTable alone. */
static bool is_kernel_table(u64 desc, unsigned int shift)
{
	return !is_leaf(desc, shift) && (desc & PMD_TABLE_UXN);
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

/* Does a table leave all permissions of a leaf to what it maps? */
static bool table_permits(u64 table, u64 leaf)
{
	u64 taken = 0;

	if (!(leaf & PTE_PXN))
		taken |= PMD_TABLE_PXN;
	if (!(leaf & PTE_UXN))
		taken |= PMD_TABLE_UXN;
	if (leaf & PTE_USER)
		taken |= TABLE_NO_USER;
	if (!(leaf & PTE_RDONLY) || (leaf & PTE_WRITE))
		taken |= TABLE_READ_ONLY;

	return !(table & (taken | (TABLE_ATTRIBUTES & ~TABLE_PERMISSIONS)));
}

/*
 * Does every entry of a table translate like its part of a leaf that spans the table? It may
 * be a table again, as where a GiB becomes pages in one step.
 */
static bool same_translation(u64 table, u64 leaf, unsigned int shift)
{
	unsigned int entry_shift = shift - (PAGE_SHIFT - 3);
	const u64 *entries = __va(output_address(table));
	unsigned int i;

	if (!table_permits(table, leaf))
		return false;

	for (i = 0; i < PTRS_PER_PTE; i++) {
		u64 entry = READ_ONCE(entries[i]);
		u64 part = pte_val(pfn_pte(PHYS_PFN(output_address(leaf) + ((u64)i << entry_shift)),
					   __pgprot(attributes(leaf))));

		if (!(entry & PTE_VALID))
			return false;
		if (!is_leaf(entry, entry_shift)) {
			if (!same_translation(entry, part, entry_shift))
				return false;
		} else if (output_address(entry) != output_address(part) ||
			   ((attributes(entry) ^ attributes(leaf)) & ~PTE_TYPE_BITS)) {
			return false;
		}
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

	if (!old_leaf && !new_leaf) {
		if (output_address(old) != output_address(new))
			return "one table is exchanged for another";
		if ((old ^ new) & TABLE_ATTRIBUTES & ~TABLE_PERMISSIONS)
			return "attributes of a table change that are no permissions";
		return NULL;
	}

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
	/* contpte_wrprotect_ptes() does this on any CPU; what is checked here never needs it. */
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

/* How many entries may make up a contiguous range; 1 where there is none. */
static unsigned int group_entries(unsigned int shift)
{
	if (shift == PAGE_SHIFT)
		return CONT_PTES;
	if (shift == PMD_SHIFT)
		return CONT_PMDS;

	return 1;
}

static unsigned int group_index(const void *entry, unsigned int shift)
{
	return offset_in_page(entry) / sizeof(u64) % group_entries(shift);
}

/*
 * Does an entry of a group agree with @leaf, which is @distance entries before it? It
 * belongs to the same contiguous range, or to none if @leaf belongs to none.
 */
static bool agrees(u64 entry, u64 leaf, unsigned int shift, int distance)
{
	bool is_valid_leaf = (entry & PTE_VALID) && is_leaf(entry, shift);

	if (!(leaf & PTE_CONT))
		return !is_valid_leaf || !(entry & PTE_CONT);

	return is_valid_leaf && attributes(entry) == attributes(leaf) &&
	       output_address(entry) == output_address(leaf) + (s64)distance * (1LL << shift);
}

/**
 * pgtable_group_error() - what is wrong with an entry of what may be a contiguous range?
 * @entry: where it is
 * @new: the valid leaf that is to be written there
 * @shift: the entry maps 1 << @shift bytes
 *
 * Contiguous ranges are written from the first entry to the last, so @new must agree with
 * the entries before it.
 *
 * Context: any.
 * Return: NULL if nothing is, or else what.
 */
const char *pgtable_group_error(const void *entry, u64 new, unsigned int shift)
{
	unsigned int nr = group_entries(shift), index = group_index(entry, shift);
	const u64 *first = (const u64 *)entry - index;
	unsigned int i;

	if (!(new & PTE_CONT)) {
		if (index && !agrees(READ_ONCE(first[index - 1]), new, shift, -1))
			return "only a part of a contiguous range has the contiguous bit";
		return NULL;
	}

	if (((output_address(new) >> shift) & (nr - 1)) != index)
		return "contiguous range is not aligned to its size";

	for (i = 0; i < index; i++)
		if (!agrees(READ_ONCE(first[i]), new, shift, (int)i - (int)index))
			return "entries of a contiguous range disagree";

	return NULL;
}

/* Protects the two tables below. Who cannot have it at once does without them. */
static DEFINE_RAW_SPINLOCK(history_lock);

/* How many invalidations of kernel addresses have been completed. */
static atomic_long_t tlbi_count = ATOMIC_LONG_INIT(0);

/*
 * The entries that were made invalid last, what they were before, and how many TLB
 * invalidations had been completed then. Of two with the same hash the later one is kept.
 */
#define HISTORY_BITS	8
static struct broken_entry {
	const void *entry;
	u64 desc;
	long tlbi_count;
} broken_entries[1 << HISTORY_BITS];

/*
 * The tasks that are writing a contiguous range, and the entry that has to be next; and how
 * many writes had been missed then, for want of the lock. After a further one, which may have
 * been of the range, nothing is known of it.
 */
static struct open_group {
	const struct task_struct *task;
	const u64 *next;
	int missed;
} open_groups[1 << HISTORY_BITS];

static atomic_t missed = ATOMIC_INIT(0);

static void remember_broken(const void *entry, u64 desc)
{
	struct broken_entry *broken = &broken_entries[hash_ptr(entry, HISTORY_BITS)];
	unsigned long flags;

	if (!raw_spin_trylock_irqsave(&history_lock, flags))
		return;
	broken->entry = entry;
	broken->desc = desc;
	broken->tlbi_count = atomic_long_read(&tlbi_count);
	raw_spin_unlock_irqrestore(&history_lock, flags);
}

/* What was an entry before it was made invalid? 0 if the TLB was invalidated since. */
static u64 take_broken(const void *entry)
{
	struct broken_entry *broken = &broken_entries[hash_ptr(entry, HISTORY_BITS)];
	unsigned long flags;
	u64 desc = 0;

	if (!raw_spin_trylock_irqsave(&history_lock, flags))
		return 0;
	if (broken->entry == entry) {
		if (broken->tlbi_count == atomic_long_read(&tlbi_count))
			desc = broken->desc;
		broken->entry = NULL;
	}
	raw_spin_unlock_irqrestore(&history_lock, flags);

	return desc;
}

/*
 * Has this task left a contiguous range half written, as it goes on with @entry, or, if
 * that is NULL, with a TLB invalidation? @next is the entry that has to follow, or NULL.
 */
static const u64 *left_open(const void *entry, const u64 *next)
{
	struct open_group *open = &open_groups[hash_ptr(current, HISTORY_BITS)];
	const u64 *left = NULL;
	unsigned long flags;

	/* What interrupts a task does not go on for it. */
	if (!in_task())
		return NULL;
	if (!raw_spin_trylock_irqsave(&history_lock, flags)) {
		atomic_inc(&missed);
		return NULL;
	}
	if (open->task == current && open->next != entry && open->missed == atomic_read(&missed))
		left = open->next;
	if (next || open->task == current) {
		open->task = next ? current : NULL;
		open->next = next;
		open->missed = atomic_read(&missed);
	}
	raw_spin_unlock_irqrestore(&history_lock, flags);

	return left;
}

/*
 * The entry that has to be written after this one to complete a contiguous range, or to
 * dissolve it: the first that does not agree with it yet. NULL if there is none.
 */
static const u64 *next_in_group(const u64 *entry, u64 old, u64 new, unsigned int shift)
{
	unsigned int i, nr = group_entries(shift), index = group_index(entry, shift);
	u64 cont = new & PTE_CONT;

	if ((old & PTE_VALID) && is_leaf(old, shift))
		cont |= old & PTE_CONT;
	/* Entries of the top table are written by way of the fixmap, which has entries too. */
	if (!cont || !(new & PTE_VALID) || in_swapper_pgdir((void *)entry))
		return NULL;

	for (i = 1; i < nr - index; i++)
		if (!agrees(READ_ONCE(entry[i]), new, shift, i))
			return entry + i;

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

/* A change from valid to valid, which @old may have been before it was made invalid. */
static const char *change_error(u64 old, u64 new, unsigned int shift)
{
	return pgtable_transition_error(old, new, shift, sizes_may_change(),
					atomic_read(&paused));
}

/**
 * __check_pgtable_transition() - check a change of an entry
 * @entry: where it is
 * @old: what is there
 * @new: what is to replace it; one of them is valid
 * @shift: the entry maps 1 << @shift bytes
 *
 * It is exported, as modules may use the inline functions that call it, such as set_pte_at().
 *
 * Context: any.
 */
void __check_pgtable_transition(const void *entry, u64 old, u64 new, unsigned int shift)
{
	bool was_valid = old & PTE_VALID, is_valid = new & PTE_VALID;
	bool is_kernel = (is_valid && is_kernel_leaf(new, shift)) ||
			 (was_valid && is_kernel_leaf(old, shift));
	const char *error = NULL;
	const u64 *left;

	if (!checking)
		return;

	if (is_kernel) {
		left = left_open(entry, next_in_group(entry, old, new, shift));
		if (left)
			report_pgtable_transition(left, READ_ONCE(*left), READ_ONCE(*left), shift,
						  "contiguous range is left half written");
	}

	if (!is_valid) {
		if (is_kernel || is_kernel_table(old, shift))
			remember_broken(entry, old);
		return;
	}

	if (!was_valid) {
		if (!is_kernel && !is_kernel_table(new, shift))
			return;
		old = take_broken(entry);
		if (old && change_error(old, new, shift))
			error = "made valid again before the TLB was invalidated";
	} else if (is_kernel || (!is_leaf(old, shift) && !is_leaf(new, shift))) {
		error = change_error(old, new, shift);
	} else {
		return;
	}

	if (!error && is_kernel_leaf(new, shift))
		error = pgtable_group_error(entry, new, shift);
	if (error)
		report_pgtable_transition(entry, old, new, shift, error);
}
EXPORT_SYMBOL_GPL(__check_pgtable_transition);

/**
 * check_pgtable_paused_transition() - check break-before-make that is done in a pause
 * @entry: where the entry is
 * @old: what is there; if that is not valid, nothing can be wrong
 * @new: what is to replace it
 * @shift: the entry maps 1 << @shift bytes
 *
 * In the pause itself nothing can be looked at. Any change is legal then, but one of size must
 * leave every translation as it is, or those who go on would find another memory.
 *
 * Context: any.
 */
void check_pgtable_paused_transition(const void *entry, u64 old, u64 new, unsigned int shift)
{
	const char *error;

	if (!checking || !(old & PTE_VALID))
		return;

	error = pgtable_transition_error(old, new, shift, true, true);
	if (error)
		report_pgtable_transition(entry, old, new, shift, error);
}

/**
 * __pgtable_transition_tlbi() - a TLB invalidation of kernel addresses is complete
 *
 * Context: any.
 */
void __pgtable_transition_tlbi(void)
{
	const u64 *left = left_open(NULL, NULL);

	atomic_long_inc(&tlbi_count);
	if (left)
		report_pgtable_transition(left, READ_ONCE(*left), READ_ONCE(*left), PAGE_SHIFT,
					  "contiguous range is left half written");
}
EXPORT_SYMBOL_GPL(__pgtable_transition_tlbi);

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
		pr_warn("arm64.pgtable_transition_check=%s is neither on nor off: it stays off\n",
			arg);
		return ret;
	}

	if (enable) {
		static_branch_enable(&pgtable_transition_key);
		checking = true;
		pr_info("checking changes of valid kernel entries\n");
	}

	return 0;
}
early_param("arm64.pgtable_transition_check", parse_check);

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
