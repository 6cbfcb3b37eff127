/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Is a change of a valid kernel page-table entry legal? See
 * arch/arm64/mm/pgtable_transition.c.
 */
#ifndef __ASM_PGTABLE_TRANSITION_H
#define __ASM_PGTABLE_TRANSITION_H

#ifndef __ASSEMBLY__

#include <linux/types.h>

#ifdef CONFIG_ARM64_PGTABLE_TRANSITION_CHECK

#include <linux/jump_label.h>

DECLARE_STATIC_KEY_FALSE(pgtable_transition_key);

const char *pgtable_transition_error(u64 old, u64 new, unsigned int shift, bool bbml2,
				     bool paused);
void __check_pgtable_transition(const void *entry, u64 old, u64 new, unsigned int shift);
void __pgtable_transition_tlbi(void);
void pgtable_transition_pause(void);
void pgtable_transition_resume(void);

/* To be called before an entry is written; @shift says how much the entry maps. */
static __always_inline void check_pgtable_transition(const void *entry, u64 new,
						     unsigned int shift)
{
	if (static_branch_unlikely(&pgtable_transition_key)) {
		u64 old = READ_ONCE(*(const u64 *)entry);

		if (((old | new) & 1) && old != new)
			__check_pgtable_transition(entry, old, new, shift);
	}
}

/* To be called when a TLB invalidation of kernel addresses on all CPUs is complete. */
static __always_inline void pgtable_transition_tlbi(void)
{
	if (static_branch_unlikely(&pgtable_transition_key))
		__pgtable_transition_tlbi();
}

#else

static inline void check_pgtable_transition(const void *entry, u64 new, unsigned int shift) { }
static inline void pgtable_transition_tlbi(void) { }
static inline void pgtable_transition_pause(void) { }
static inline void pgtable_transition_resume(void) { }

#endif /* CONFIG_ARM64_PGTABLE_TRANSITION_CHECK */

#endif /* !__ASSEMBLY__ */

#endif /* __ASM_PGTABLE_TRANSITION_H */
