// SPDX-License-Identifier: GPL-2.0-only
/*
 * How live entries of the vmemmap are changed.
 *
 * HVO (mm/hugetlb_vmemmap_batch.c) points the entries of a hugetlb page's tail struct
 * pages at one page, and back at pages of their own, while anyone may look at them. The
 * architecture wants break-before-make for most of that. There are two ways to do it.
 *
 * Paused: all other CPUs are paused; the entries are made invalid, the TLBs invalidated,
 * the new entries written. That works on every machine. One pause serves many entries.
 *
 * Seamless, the default: no change of an entry needs break-before-make. A new output
 * address does not if both the old and the new entry are read-only and the memory at both
 * addresses has the same contents. The Arm ARM (DDI 0487, on break-before-make) requires it
 * where one of the two entries is writable, or where the contents differ. An entry in which
 * the hardware may set the dirty state (DBM) counts as writable; pte_wrprotect() clears that
 * bit, too. The rule is the same on every CPU, whatever its BBM level. So each
 * change is made in two steps, with the TLBs invalidated after each:
 *
 *	shared		read-write, own page	-> read-only, own page	-> read-only, shared
 *	given back	read-only, shared	-> read-only, own page	-> read-write, own page
 *
 * Permissions may change live. After the first step nobody can write to the page that
 * is given up, and its last reader is gone after the second.
 *
 * In both ways the vmemmap must consist of pages first. With 4K pages it is mapped by
 * blocks of 2 MiB, which are split, once: they are never put together again. To split is
 * a change of size only, which is done live where system_supports_bbml2_noabort(), and paused
 * elsewhere.
 */
#define pr_fmt(fmt) "HugeTLB: " fmt

#include <kunit/static_stub.h>

#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/kprobes.h>
#include <linux/lockdep.h>
#include <linux/memblock.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pgtable.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/vmstat.h>

#include <asm/barrier.h>
#include <asm/bbml2.h>
#include <asm/cpu_pause.h>
#include <asm/pgalloc.h>
#include <asm/tlbflush.h>
#include <asm/vmemmap_change.h>

/* As the command line says, from the time at which that is parsed. */
enum vmemmap_change_mode vmemmap_change_mode __ro_after_init = VMEMMAP_CHANGE_SEAMLESS;
static const char *reason __ro_after_init;

/* What pauses took; changes from several tasks may be added at a time, by cpu-pause. */
static struct cpu_pause_stats pause_stats;

/*
 * The first step of a change. The output address changes between read-only entries only:
 * in the second step if the old entry was writable, or else in the first.
 */
static pte_t first_step(pte_t old, pte_t new)
{
	return pte_wrprotect(pte_write(old) ? old : new);
}

/*
 * Invalidate the translations of a range of addresses: one by one if it has few pages, and
 * otherwise all that there are. Every CPU has to take each address. flush_tlb_kernel_range()
 * alone would go one by one for PTRS_PER_PTE pages, which are 512 with 4K pages, but 8192 with
 * 64K pages.
 */
static __always_inline void invalidate(unsigned long start, unsigned long end,
				       unsigned int max_pages)
{
	if (end - start > max_pages * PAGE_SIZE)
		flush_tlb_all();
	else
		flush_tlb_kernel_range(start, end);
}

/**
 * vmemmap_change_is_possible() - is it worth while to try a change?
 *
 * Context: process context, interrupts enabled. Does not sleep; see cpu_pause_look_for_cpus().
 * Return: false if CPUs are paused for changes, and one is lost, maybe for good.
 */
bool vmemmap_change_is_possible(void)
{
	return !vmemmap_change_pauses() || cpu_pause_look_for_cpus();
}

/* What flush_tlb_kernel_range() has as its bound with 4K pages. */
#define LIVE_PAGES	512U

static void remap_live(struct vmemmap_changes *changes)
{
	struct vmemmap_change *change = changes->change, *end = change + changes->nr;

	/*
	 * The caller has written struct pages to the new pages through the linear map. A CPU
	 * that walks to a new entry must find them there, and not what the page held before:
	 * compound_head() would take bit 0 of that for a tail. So the contents have to be
	 * visible before the first entry is. The invalidation below is too late for that,
	 * because the entries can be walked from the moment they are written. On the reader's
	 * side the walk and the access that it is for are ordered by themselves.
	 */
	smp_wmb();

	for (; change < end; change++)
		__set_pte_nosync(change->ptep, first_step(__ptep_get(change->ptep), change->pte));
	invalidate(changes->start, changes->end, LIVE_PAGES);

	for (change = changes->change; change < end; change++)
		__set_pte_nosync(change->ptep, change->pte);
	invalidate(changes->start, changes->end, LIVE_PAGES);
}

/**
 * struct paused_work - entries that are changed while all other CPUs are paused
 * @entries: an array of the entries and their new values, in whatever form
 * @nr: how many there are
 * @done: how many have been changed, in this pause and earlier ones
 * @start: the first address that any of them is about
 * @end: the address after the last
 */
struct paused_work {
	void *entries;
	unsigned int nr;
	unsigned int done;
	unsigned long start;
	unsigned long end;
};

/*
 * Break, invalidate, make; as many entries as the pause has time for. After each @chunk of
 * them it is seen whether half of the time has passed, as to make them takes as long as to
 * break them. All of this is inlined, because nothing that runs in a pause may be traced.
 *
 * Nobody uses the vmemmap meanwhile, this CPU included: the entries are in the linear map or the
 * kernel's image, their new values there or in vmalloc, and no struct page is looked at.
 */
static __always_inline bool break_and_make(struct paused_work *work, unsigned int chunk,
					   void (*write)(void *entries, unsigned int i, bool valid),
					   void (*invalidate)(const struct paused_work *work))
{
	unsigned int i, end, first = work->done;
	void *entries = work->entries;

	for (end = first; end < work->nr && (end == first || !cpu_pause_half_reached()); )
		for (i = min(work->nr - end, chunk); i; i--)
			write(entries, end++, false);
	/* Its first barrier also makes what new tables hold visible before the tables are. */
	invalidate(work);

	for (i = first; i < end; i++)
		write(entries, i, true);
	dsb(ishst);
	isb();
	work->done = end;

	return end < work->nr;
}

static __always_inline void write_pte(void *entries, unsigned int i, bool valid)
{
	struct vmemmap_change *change = (struct vmemmap_change *)entries + i;

	__set_pte_nosync(change->ptep, valid ? change->pte : __pte(0));
}

#define REMAP_CHUNK	64U

/* The pause has looked at the time before, so that it may go by address for few only. */
static __always_inline void invalidate_ptes(const struct paused_work *work)
{
	invalidate(work->start, work->end, REMAP_CHUNK);
}

static bool notrace remap_paused(void *arg)
{
	return break_and_make(arg, REMAP_CHUNK, write_pte, invalidate_ptes);
}

NOKPROBE_SYMBOL(remap_paused);

/**
 * vmemmap_remap() - change live entries that map pages of the vmemmap
 * @changes: the changes
 *
 * Each either makes a writable entry read-only or a read-only one writable, and may change
 * the output address. If the mode is seamless, the memory at the old and the new address
 * must have the same contents. When it returns nobody uses the old translations of the
 * entries that were changed.
 *
 * Context: process context, may sleep. The caller owns the struct pages that the entries
 *	    map: nobody else changes the entries or writes to the struct pages.
 * Return: how many were made: the first ones, and all unless the mode is to pause and not
 *	   all CPUs can be paused now.
 */
unsigned int vmemmap_remap(struct vmemmap_changes *changes)
{
	struct paused_work work = {
		.entries = changes->change,
		.nr = changes->nr,
		.start = changes->start,
		.end = changes->end,
	};

	KUNIT_STATIC_STUB_REDIRECT(vmemmap_remap, changes);

	if (!changes->nr)
		return 0;

	if (vmemmap_change_mode == VMEMMAP_CHANGE_SEAMLESS) {
		remap_live(changes);
		return changes->nr;
	}

	/* An error is told by what is not done. */
	cpu_pause_run(remap_paused, &work, &pause_stats);

	return work.done;
}

/* Splitting blocks into pages */

/*
 * Held from the first look at a block until its split is complete: until the table is there
 * and no TLB holds the block any more. A table that is seen without the lock may be one
 * whose block is still in some TLB. An entry of the table must not be changed then, because
 * to invalidate its address need not remove the block's translation. Where a TLB has several
 * entries for one address, only an invalidation of everything is relied on to remove them.
 */
static DEFINE_MUTEX(split_lock);

struct split {
	pmd_t *pmd;
	pmd_t table;
};

/* So many blocks are split together: the vmemmap of 32 GiB with 4K pages. */
#define MAX_SPLITS	256

/* Protected by split_lock: what vmemmap_split_add() has prepared, and whether it failed. */
static struct split splits[MAX_SPLITS];
static unsigned int nr_splits;
static int split_error;

static __always_inline void write_pmd(void *entries, unsigned int i, bool valid)
{
	struct split *split = (struct split *)entries + i;

	set_pmd(split->pmd, valid ? split->table : __pmd(0));
}

static __always_inline void invalidate_blocks(const struct paused_work *work)
{
	flush_tlb_all();
}

#define SPLIT_CHUNK	16U

static bool notrace split_paused(void *arg)
{
	return break_and_make(arg, SPLIT_CHUNK, write_pmd, invalidate_blocks);
}

NOKPROBE_SYMBOL(split_paused);

/* The pages of a block from the page allocator will be freed one by one. */
static void split_block_pages(struct page *page)
{
	if (!PageReserved(page))
		split_page(page, PMD_SHIFT - PAGE_SHIFT);
}

/*
 * Put the tables in place while all other CPUs are paused, as far as they can be. A block
 * that stays one has to stay one page of the page allocator too, as which it would be freed.
 * So pages are split afterwards: nobody frees any of them before split_lock is given back.
 */
static int install_splits_paused(unsigned int nr)
{
	struct paused_work work = { .entries = splits, .nr = nr };
	int ret = cpu_pause_run(split_paused, &work, &pause_stats);
	unsigned int i;

	for (i = 0; i < work.done; i++)
		split_block_pages(pfn_to_page(pte_pfn(*(pte_t *)pmd_page_vaddr(splits[i].table))));
	for (; i < nr; i++)
		pte_free_kernel(&init_mm, (pte_t *)pmd_page_vaddr(splits[i].table));

	return ret;
}

/*
 * Put the tables that were prepared in place; whether it fails or not, none is left. They
 * translate everything as the blocks did.
 */
static int install_splits(void)
{
	unsigned int i, nr = nr_splits;

	if (!nr)
		return 0;
	nr_splits = 0;

	if (!system_supports_bbml2_noabort())
		return install_splits_paused(nr);

	for (i = 0; i < nr; i++)
		split_block_pages(pmd_page(READ_ONCE(*splits[i].pmd)));

	/*
	 * All entries of the tables, and the reference counts of the pages that they map, must
	 * be visible before a table is: other CPUs may walk it at once.
	 */
	dsb(ishst);

	/* A change of size, which may be live. */
	for (i = 0; i < nr; i++)
		set_pmd(splits[i].pmd, splits[i].table);
	flush_tlb_all();

	return 0;
}

/*
 * Was the split of a block prepared already? Several folios have their vmemmap in one block,
 * but are named one after the other, in whichever order they were allocated.
 */
static bool is_prepared(const pmd_t *pmdp)
{
	unsigned int i;

	for (i = 0; i < nr_splits; i++)
		if (splits[i].pmd == pmdp)
			return true;

	return false;
}

/* Have a table translate all that a block does; it is not in place yet. */
static void fill_table(pte_t *table, pmd_t block)
{
	pgprot_t prot = __pgprot((pgprot_val(pte_pgprot(pmd_pte(block))) & ~PTE_TYPE_MASK) |
				 PTE_TYPE_PAGE);
	unsigned int i;

	for (i = 0; i < PTRS_PER_PTE; i++)
		WRITE_ONCE(table[i], pfn_pte(pmd_pfn(block) + i, prot));
}

/*
 * Prepare the split of a block, which saves memory and can be done without. So no task is killed
 * for want of a table. One that waits for the lock could not even die. Nor is I/O waited for: a
 * driver that resets the device which has to do it may want the lock.
 *
 * The table stays for good, so it is on the node of the struct pages, whoever splits them.
 */
static int prepare_split(struct split *split, pmd_t *pmdp)
{
	gfp_t gfp = GFP_NOIO | __GFP_COMP | __GFP_ZERO | __GFP_RETRY_MAYFAIL | __GFP_NOWARN;
	int nid = page_to_nid(pmd_page(READ_ONCE(*pmdp)));
	struct page *page = alloc_pages_node(nid, gfp, 0);
	pmd_t entry = __pmd(0);
	pte_t *table;

	if (!page)
		return -ENOMEM;

	table = page_address(page);
	fill_table(table, READ_ONCE(*pmdp));
	/* Not into split->table: that is no table, and may hold the entry of an earlier split. */
	pmd_populate_kernel(&init_mm, &entry, table);
	split->pmd = pmdp;
	split->table = entry;

	return 0;
}

/**
 * vmemmap_split_begin() - begin to have parts of the vmemmap consist of pages
 *
 * The parts are named with vmemmap_split_add(), and are split together by
 * vmemmap_split_end(): if CPUs have to be paused, once for 32 GiB of memory.
 *
 * Context: process context, may sleep. Nobody else splits until vmemmap_split_end().
 */
void vmemmap_split_begin(void)
{
	mutex_lock(&split_lock);
	split_error = 0;
}

/**
 * vmemmap_split_add() - name a part of the vmemmap that shall consist of pages
 * @start: its first address
 * @end: the address after its last
 *
 * Context: between vmemmap_split_begin() and vmemmap_split_end(), whose context it has. The
 *	    memory that the part is about is not removed until then. After an error, which
 *	    vmemmap_split_end() returns, nothing more is split.
 */
void vmemmap_split_add(unsigned long start, unsigned long end)
{
	unsigned long addr;

	lockdep_assert_held(&split_lock);
	for (addr = start; addr < end && !split_error; addr = pmd_addr_end(addr, end)) {
		pmd_t *pmdp = pmd_off_k(addr);

		if (!pmd_leaf(READ_ONCE(*pmdp)) || is_prepared(pmdp))
			continue;
		split_error = prepare_split(&splits[nr_splits], pmdp);
		if (!split_error && ++nr_splits == MAX_SPLITS)
			split_error = install_splits();
	}
}

/**
 * vmemmap_split_end() - split the parts of the vmemmap that were named
 *
 * Context: as vmemmap_split_begin(), whose counterpart it is.
 * Return: 0; -ENOMEM if there was no memory for a table, -EBUSY if CPUs have to be paused
 *	   and cannot be now, -EOPNOTSUPP if they may never be again. Then some blocks may have
 *	   been split.
 */
int vmemmap_split_end(void)
{
	int ret = install_splits() ?: split_error;

	mutex_unlock(&split_lock);

	return ret;
}

/**
 * vmemmap_split() - have a part of the vmemmap consist of pages
 * @start: its first address
 * @end: the address after its last
 *
 * Context: process context, may sleep. The memory is not removed meanwhile.
 * Return: as vmemmap_split_end().
 */
int vmemmap_split(unsigned long start, unsigned long end)
{
	vmemmap_split_begin();
	vmemmap_split_add(start, end);

	return vmemmap_split_end();
}

/**
 * vmemmap_split_pauses() - would CPUs be paused to split a part of the vmemmap?
 * @start: its first address
 * @end: the address after its last
 *
 * Somebody else may split it meanwhile. It is never put together again.
 *
 * Context: any. The memory is not removed meanwhile.
 * Return: true if it has a block, and blocks cannot be split live.
 */
bool vmemmap_split_pauses(unsigned long start, unsigned long end)
{
	unsigned long addr;

	if (system_supports_bbml2_noabort())
		return false;
	for (addr = start; addr < end; addr = pmd_addr_end(addr, end))
		if (pmd_leaf(READ_ONCE(*pmd_off_k(addr))))
			return true;

	return false;
}

/* Hugetlb pages that are reserved at boot */

/* The page frame that an address of the vmemmap is mapped to. */
static unsigned long __init pfn_of(unsigned long addr)
{
	pmd_t *pmdp = pmd_off_k(addr), pmd = READ_ONCE(*pmdp);

	return pmd_leaf(pmd) ? pmd_pfn(pmd) + pte_index(addr) :
			       pte_pfn(__ptep_get(pte_offset_kernel(pmdp, addr)));
}

/* Give memory back to memblock, in as large pieces as it is in. */
static void __init free_part_at_boot(unsigned long start, unsigned long end)
{
	unsigned long first = pfn_of(start), nr = 0, addr, pfn;

	for (addr = start; addr < end; addr += PAGE_SIZE, nr++) {
		pfn = pfn_of(addr);
		if (pfn != first + nr) {
			memblock_phys_free(PFN_PHYS(first), nr * PAGE_SIZE);
			first = pfn;
			nr = 0;
		}
	}
	memblock_phys_free(PFN_PHYS(first), nr * PAGE_SIZE);
}

/**
 * vmemmap_is_shared() - does a part of the vmemmap share a page already?
 * @start: its first address
 * @end: the address after its last
 *
 * Context: any; nobody changes the part meanwhile.
 * Return: true if its last page maps the kept page.
 */
bool __init vmemmap_is_shared(unsigned long start, unsigned long end)
{
	unsigned long kept = start + (hugetlb_vmemmap_retained_pages() - 1) * PAGE_SIZE;

	return pfn_of(end - PAGE_SIZE) == pfn_of(kept);
}

/**
 * vmemmap_share_at_boot() - have the struct pages of a hugetlb page take little memory
 * @start: the address of the first of them
 * @end: the address after the last
 * @nid: the node to take memory from
 *
 * Its pages but the first map one page, read-only: the first or, where hugetlb pages keep
 * two pages of struct pages, the second. That one is for the caller to write to, through the
 * linear map. Both have the contents that they had: until folios are made, page_ext_init()
 * asks the first struct page of each section for its node. All of it is new memory, and all
 * of the old is given back, so that memory from memblock stays in one piece: a part of the
 * vmemmap of gigabytes becomes a piece of gigabytes.
 *
 * No other CPU runs, and nobody looks at these struct pages, nor at others whose vmemmap is
 * in the same block, because interrupts are off and this function looks at none. So
 * everything can be made invalid at once, and there is no pause.
 *
 * Context: the boot CPU, interrupts off, before memblock gives memory to the page allocator.
 * Return: false if there was no memory; then nothing has changed.
 */
bool __init vmemmap_share_at_boot(unsigned long start, unsigned long end, int nid)
{
	unsigned int kept_pages = hugetlb_vmemmap_retained_pages(), nr_tables = 0;
	unsigned long addr, next, i;
	pte_t head, shared, *table;
	void *memory;
	pmd_t *pmdp;

	for (addr = start; addr < end; addr = pmd_addr_end(addr, end))
		nr_tables += pmd_leaf(READ_ONCE(*pmd_off_k(addr)));
	/* kmemleak does not look at page-table entries, and would report this memory as leaked. */
	memory = memblock_alloc_try_nid((kept_pages + nr_tables) * PAGE_SIZE, PAGE_SIZE,
					MEMBLOCK_LOW_LIMIT, MEMBLOCK_ALLOC_NOLEAKTRACE, nid);
	if (!memory)
		return false;

	for (i = 0; i < kept_pages; i++)
		copy_page(memory + i * PAGE_SIZE, (void *)start + i * PAGE_SIZE);
	head = pfn_pte(PHYS_PFN(__pa(memory)), PAGE_KERNEL);
	shared = pfn_pte(PHYS_PFN(__pa(memory)) + kept_pages - 1, PAGE_KERNEL_RO);
	memory += kept_pages * PAGE_SIZE;

	table = memory;
	for (addr = start; addr < end; addr = next) {
		next = pmd_addr_end(addr, end);
		if (!pmd_leaf(READ_ONCE(*pmd_off_k(addr))))
			continue;
		fill_table(table, READ_ONCE(*pmd_off_k(addr)));
		for (i = addr; i < next; i += PAGE_SIZE)
			WRITE_ONCE(table[pte_index(i)], i == start ? head : shared);
		table += PTRS_PER_PTE;
	}

	/*
	 * The old memory is still mapped when memblock may already reuse it. That does no harm,
	 * because nobody looks at the struct pages in it, and whoever looks next will find the
	 * new ones.
	 */
	free_part_at_boot(start, end);
	memmap_boot_pages_add((long)kept_pages - (long)((end - start) / PAGE_SIZE));

	/* Break: block by block, and entry by entry where there is a table already. */
	for (addr = start; addr < end; addr = next) {
		next = pmd_addr_end(addr, end);
		pmdp = pmd_off_k(addr);
		if (pmd_leaf(READ_ONCE(*pmdp))) {
			set_pmd(pmdp, __pmd(0));
			continue;
		}
		for (i = addr; i < next; i += PAGE_SIZE)
			__set_pte_nosync(pte_offset_kernel(pmdp, i), __pte(0));
	}
	/* Its first barrier also makes what the tables hold visible before they are. */
	flush_tlb_all();

	/* Make. */
	table = memory;
	for (addr = start; addr < end; addr = next) {
		next = pmd_addr_end(addr, end);
		pmdp = pmd_off_k(addr);
		if (pmd_none(READ_ONCE(*pmdp))) {
			pmd_populate_kernel(&init_mm, pmdp, table);
			table += PTRS_PER_PTE;
			continue;
		}
		for (i = addr; i < next; i += PAGE_SIZE)
			__set_pte_nosync(pte_offset_kernel(pmdp, i), i == start ? head : shared);
	}
	dsb(ishst);
	isb();

	return true;
}

/* The mode */

static bool mode_asked_for __initdata;

static int __init parse_mode(char *arg)
{
	bool pause = arg && !strcmp(arg, "pause"), seamless = arg && !strcmp(arg, "seamless");

	if (!pause && !seamless && (!arg || strcmp(arg, "auto")))
		pr_warn("hugetlb_vmemmap=%s: not one of auto, pause, seamless; using auto\n",
			arg ?: "");
	vmemmap_change_mode = pause ? VMEMMAP_CHANGE_PAUSE : VMEMMAP_CHANGE_SEAMLESS;
	mode_asked_for = pause || seamless;

	return 0;
}
early_param("hugetlb_vmemmap", parse_mode);

/* What the CPUs have in common is final before initcalls. */
static int __init explain_mode(void)
{
	if (mode_asked_for)
		reason = "asked for with hugetlb_vmemmap=";
	else if (system_supports_bbml2_noabort())
		reason = "BBM level 2 without aborts";
	else
		reason = IS_ENABLED(CONFIG_ARM64_4K_PAGES) ?
			 "CPUs are paused only to split a block, once" :
			 "the vmemmap consists of pages";

	pr_info("vmemmap optimization %s (%s)\n",
		vmemmap_change_pauses() ? "pauses CPUs" : "is seamless", reason);

	return 0;
}
core_initcall(explain_mode);

/* What of /sys/kernel/mm/hugetlb_vmemmap is about how changes are made. */

#define CHANGE_ATTR(_name, _format, _value)						\
static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)	\
{											\
	return sysfs_emit(buf, _format "\n", _value);					\
}											\
static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

CHANGE_ATTR(mode, "%s", vmemmap_change_pauses() ? "pause" : "seamless");
CHANGE_ATTR(reason, "%s", reason);
CHANGE_ATTR(pauses, "%llu", READ_ONCE(pause_stats.pauses));
CHANGE_ATTR(longest_pause_ns, "%llu", READ_ONCE(pause_stats.longest_ns));
CHANGE_ATTR(total_pause_ns, "%llu", READ_ONCE(pause_stats.total_ns));

static struct attribute *change_attrs[] = {
	&mode_attr.attr,
	&reason_attr.attr,
	&pauses_attr.attr,
	&longest_pause_ns_attr.attr,
	&total_pause_ns_attr.attr,
	NULL
};

const struct attribute_group vmemmap_change_group = {
	.name = "hugetlb_vmemmap",
	.attrs = change_attrs,
};
