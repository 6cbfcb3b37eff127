/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The linear map in large blocks, for the code that paints, changes, adds and
 * removes it. See arch/arm64/mm/linear_map.c.
 */
#ifndef __ASM_LINEAR_MAP_H
#define __ASM_LINEAR_MAP_H

#include <linux/types.h>

#include <asm/set_memory.h>

struct module;
struct vm_struct;

/* Painting and hotplug */
phys_addr_t linear_map_take_table(int shift);

/* Permissions, also where sizes do not change */
int linear_map_change(unsigned long start, unsigned long size, u64 set, u64 clear);
int linear_map_change_area(const struct vm_struct *area, unsigned long start,
			   unsigned long size, u64 set, u64 clear);
int linear_map_set_valid(unsigned long start, unsigned long size, bool valid);
bool linear_map_is_valid(unsigned long addr);

#ifdef CONFIG_ARM64_LINEAR_MAP_BLOCKS

bool linear_map_choose_mode(void);
bool linear_map_in_pages(void);
bool linear_map_without_contiguous(void);
void linear_map_painted(phys_addr_t kernel_start, phys_addr_t kernel_end);
int linear_map_prepare_add(u64 start, u64 size);
void linear_map_added(u64 start, u64 size);
bool __must_check linear_map_prepare_remove(unsigned long start, u64 size);

/* Walking */
void linear_map_hold(void);
void linear_map_release(void);

/* Unequal CPUs */
void linear_map_map_park_flag(void);
void linear_map_finalise(void);

#else /* CONFIG_ARM64_LINEAR_MAP_BLOCKS */

static inline bool linear_map_choose_mode(void) { return can_set_direct_map(); }
static inline bool linear_map_in_pages(void) { return can_set_direct_map(); }
static inline bool linear_map_without_contiguous(void) { return can_set_direct_map(); }
static inline void linear_map_painted(phys_addr_t kernel_start, phys_addr_t kernel_end) { }
static inline int linear_map_prepare_add(u64 start, u64 size) { return 0; }
static inline void linear_map_added(u64 start, u64 size) { }
static inline bool linear_map_prepare_remove(unsigned long start, u64 size) { return true; }
static inline void linear_map_hold(void) { }
static inline void linear_map_release(void) { }
static inline void linear_map_map_park_flag(void) { }
static inline void linear_map_finalise(void) { }

#endif /* CONFIG_ARM64_LINEAR_MAP_BLOCKS */

#if defined(CONFIG_ARM64_LINEAR_MAP_PAUSE) && defined(CONFIG_MODULES)
int linear_map_prepare_module(const struct module *mod);
#else
static inline int linear_map_prepare_module(const struct module *mod) { return 0; }
#endif

struct arm64_cpu_capabilities;

/* The match of a capability */
bool has_linear_map_access_flag(const struct arm64_cpu_capabilities *caps, int scope);

#endif /* __ASM_LINEAR_MAP_H */
