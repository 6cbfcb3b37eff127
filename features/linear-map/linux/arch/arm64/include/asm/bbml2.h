/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * May the size of a live mapping be changed? See arch/arm64/kernel/bbml2.c.
 */
#ifndef __ASM_BBML2_H
#define __ASM_BBML2_H

#include <linux/types.h>

#include <asm/cpufeature.h>

#ifdef CONFIG_ARM64_LINEAR_MAP_BLOCKS

bool arm64_has_bbml2_noabort(u32 midr, u64 mmfr2);
bool cpu_has_bbml2_noabort(void);
bool bbml2_noabort_disabled(void);
void bbml2_noabort_require(void);
bool bbml2_noabort_is_required(void);
bool has_bbml2_noabort(const struct arm64_cpu_capabilities *caps, int scope);

/**
 * system_supports_bbml2_noabort() - do all CPUs have BBM level 2 without aborts?
 *
 * Context: any, once the system's capabilities are final.
 * Return: whether the size of a live mapping may be changed.
 */
static __always_inline bool system_supports_bbml2_noabort(void)
{
	return alternative_has_cap_unlikely(ARM64_HAS_BBML2_NOABORT);
}

#else

static __always_inline bool system_supports_bbml2_noabort(void)
{
	return false;
}

#endif /* CONFIG_ARM64_LINEAR_MAP_BLOCKS */

#endif /* __ASM_BBML2_H */
