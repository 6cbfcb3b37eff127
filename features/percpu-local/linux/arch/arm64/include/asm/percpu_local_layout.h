/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where per-CPU data lies in the kernel's address map, if each CPU has a local map of it.
 *
 * The space between the linear map and vmemmap is cut into two halves of
 * 1 << PERCPU_LOCAL_SHIFT bytes. The lower one holds modules, the kernel image and
 * vmalloc, as always. The upper one holds nothing but per-CPU data:
 *
 *  - The local region. A per-CPU pointer, which is an address in or shortly after the
 *    image's per-CPU section, becomes an address of the local region by setting
 *    PERCPU_LOCAL_BIT, which is one ORR. So the region moves with the image under KASLR,
 *    which keeps the image and PERCPU_LOCAL_MAX bytes in the first three quarters of the
 *    lower half. So the region is in the first three of the upper one.
 *  - In the last quarter, the areas of all CPUs, which per_cpu_ptr() points into.
 */
#ifndef __ASM_PERCPU_LOCAL_LAYOUT_H
#define __ASM_PERCPU_LOCAL_LAYOUT_H

#include <asm/memory.h>

/*
 * With room for the struct pages of a linear map of 52 bits, vmemmap takes a quarter of
 * the space of 16 KiB pages and half of that of 4 KiB pages.
 */
#if !defined(CONFIG_ARM64_64K_PAGES) && (VA_BITS) > (VA_BITS_MIN)
#define PERCPU_LOCAL_SHIFT	(VA_BITS_MIN - 3)
#else
#define PERCPU_LOCAL_SHIFT	(VA_BITS_MIN - 2)
#endif

#define PERCPU_LOCAL_BIT	(UL(1) << PERCPU_LOCAL_SHIFT)

/* So much per-CPU data each CPU can have, if there is room. */
#define PERCPU_LOCAL_MAX	SZ_1G

#define PERCPU_UPPER_START	(_PAGE_END(VA_BITS_MIN) + PERCPU_LOCAL_BIT)
#define PERCPU_AREAS_START	(PERCPU_UPPER_START + PERCPU_LOCAL_BIT / 4 * 3)
/* For C; vmemmap may begin below the end of the upper half, which may be that of all. */
#define PERCPU_AREAS_END							\
	(VMEMMAP_START - SZ_8M - 1 < PERCPU_UPPER_START + (PERCPU_LOCAL_BIT - 1) ?	\
	 VMEMMAP_START - SZ_8M : PERCPU_UPPER_START + PERCPU_LOCAL_BIT)

#endif /* __ASM_PERCPU_LOCAL_LAYOUT_H */
