/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __ASM_PERCPU_LOCAL_H
#define __ASM_PERCPU_LOCAL_H

#include <linux/init.h>
#include <linux/linkage.h>
#include <linux/types.h>

#include <asm/page-def.h>

#ifdef CONFIG_ARM64_PERCPU_LOCAL_MAP

struct ptdump_info;
struct ptdump_state;

/*
 * The second-level table that all CPUs share but for the entries on the path to
 * the local region, or 0; see percpu_local.c.
 */
extern unsigned long percpu_local_second_level;

bool percpu_local_enabled(void);
void percpu_local_install_boot_cpu(void);
asmlinkage void percpu_local_install(void);
void percpu_local_mirror(void *entry, u64 desc);
void percpu_local_sync_second_level(void);
void percpu_local_sync_trampoline(void);
void percpu_local_sync_nonglobal(void);
void percpu_local_ptdump_register(const struct ptdump_info *kernel);
void percpu_local_ptdump_check(struct ptdump_state *state);

/* Is this an entry of a second-level table of which each CPU has a copy? */
static __always_inline bool percpu_local_mirrored(const void *entry)
{
	return ((unsigned long)entry & PAGE_MASK) == percpu_local_second_level;
}

#else /* !CONFIG_ARM64_PERCPU_LOCAL_MAP */

struct ptdump_info;
struct ptdump_state;

static inline bool percpu_local_enabled(void) { return false; }
static inline void percpu_local_install_boot_cpu(void) { }
static inline void percpu_local_mirror(void *entry, u64 desc) { }
static inline void percpu_local_sync_second_level(void) { }
static inline void percpu_local_sync_trampoline(void) { }
static inline void percpu_local_sync_nonglobal(void) { }
static inline void
percpu_local_ptdump_register(const struct ptdump_info *kernel) { }
static inline void percpu_local_ptdump_check(struct ptdump_state *state) { }
static inline bool percpu_local_mirrored(const void *entry) { return false; }

#endif /* CONFIG_ARM64_PERCPU_LOCAL_MAP */

#endif /* __ASM_PERCPU_LOCAL_H */
