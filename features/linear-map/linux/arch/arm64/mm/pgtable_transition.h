/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __ARM64_MM_PGTABLE_TRANSITION_H
#define __ARM64_MM_PGTABLE_TRANSITION_H

#include <linux/types.h>

const char *pgtable_group_error(const void *entry, u64 new, unsigned int shift);

/* For KUnit, which puts a stub in its place. */
void report_pgtable_transition(const void *entry, u64 old, u64 new, unsigned int shift,
			       const char *error);

/* Where break-before-make is used in a pause, which the checker does not see. */
#ifdef CONFIG_ARM64_PGTABLE_TRANSITION_CHECK
void check_pgtable_paused_transition(const void *entry, u64 old, u64 new, unsigned int shift);
#else
static inline void check_pgtable_paused_transition(const void *entry, u64 old, u64 new,
						   unsigned int shift)
{
}
#endif

#endif /* __ARM64_MM_PGTABLE_TRANSITION_H */
