/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Changes of live vmemmap entries, for HVO. See arch/arm64/mm/vmemmap_change.c.
 */
#ifndef __ASM_VMEMMAP_CHANGE_H
#define __ASM_VMEMMAP_CHANGE_H

#include <linux/types.h>

#include <asm/pgtable-types.h>

struct attribute_group;

/**
 * enum vmemmap_change_mode - how live entries are changed
 * @VMEMMAP_CHANGE_PAUSE: broken and made while all other CPUs are paused
 * @VMEMMAP_CHANGE_SEAMLESS: in steps that are legal while everyone looks on
 */
enum vmemmap_change_mode {
	VMEMMAP_CHANGE_PAUSE,
	VMEMMAP_CHANGE_SEAMLESS,
};

/**
 * struct vmemmap_change - a change of one entry
 * @ptep: where it is
 * @pte: its new value
 */
struct vmemmap_change {
	pte_t *ptep;
	pte_t pte;
};

/**
 * struct vmemmap_changes - changes that are made together
 * @change: the changes
 * @nr: how many there are
 * @max: how many there is room for
 * @start: the first address that any of them is about
 * @end: the address after the last
 */
struct vmemmap_changes {
	struct vmemmap_change *change;
	unsigned int nr;
	unsigned int max;
	unsigned long start;
	unsigned long end;
};

extern enum vmemmap_change_mode vmemmap_change_mode;

/* How changes are made and what that took, for the folder of that name in /sys/kernel/mm. */
extern const struct attribute_group vmemmap_change_group;

/* Are all other CPUs stopped for a change? Then it is better to make many at a time. */
static inline bool vmemmap_change_pauses(void)
{
	return vmemmap_change_mode == VMEMMAP_CHANGE_PAUSE;
}

/* Where pages are pointed at another one that equals them, that cannot be the head's. */
static inline unsigned int hugetlb_vmemmap_retained_pages(void)
{
	return vmemmap_change_pauses() ? 1 : 2;
}

bool vmemmap_change_is_possible(void);
unsigned int vmemmap_remap(struct vmemmap_changes *changes);
int vmemmap_split(unsigned long start, unsigned long end);
void vmemmap_split_begin(void);
void vmemmap_split_add(unsigned long start, unsigned long end);
int vmemmap_split_end(void);
bool vmemmap_split_pauses(unsigned long start, unsigned long end);
bool vmemmap_is_shared(unsigned long start, unsigned long end);
bool vmemmap_share_at_boot(unsigned long start, unsigned long end, int nid);

#endif /* __ASM_VMEMMAP_CHANGE_H */
