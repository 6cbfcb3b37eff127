/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where per-CPU data lies in the kernel's address map, if each CPU has a local
 * map of it.
 *
 * The space between the linear map and vmemmap is cut at a multiple of 1 <<
 * PERCPU_LOCAL_SHIFT. The upper part holds modules, the kernel image and
 * vmalloc. The lower one, which is of that size, holds nothing but per-CPU
 * data:
 *
 *  - The local region. A per-CPU pointer, which is an address in or shortly
 *    after the image's per-CPU section, becomes an address of the local region
 *    by clearing PERCPU_LOCAL_BIT, which is one AND. So the region moves with
 *    the image under KASLR, which keeps the image and PERCPU_LOCAL_MAX bytes in
 *    the first three quarters of an upper half of the same size, and the region
 *    is in the first three quarters of the lower one.
 *  - In the last quarter, the areas of all CPUs, which per_cpu_ptr() points
 *    into.
 *
 * That the bit is cleared, and not set, is for the sake of a per-CPU pointer
 * that is NULL by mistake: it stays NULL, while a bit that is set would make it
 * an address of user space.
 *
 * Included by asm/memory.h, whose constants the macros here use.
 */
#ifndef __ASM_PERCPU_LOCAL_LAYOUT_H
#define __ASM_PERCPU_LOCAL_LAYOUT_H

#include <linux/const.h>
#include <linux/sizes.h>

/*
 * With room for the struct pages of a linear map of 52 bits, of 64 bytes each,
 * vmemmap takes a quarter of the space of 16 KiB pages and half of that of
 * 4 KiB pages.
 */
#if defined(CONFIG_ARM64_VA_BITS_52) && !defined(CONFIG_ARM64_64K_PAGES)
#define PERCPU_LOCAL_SHIFT	(VA_BITS_MIN - 3)
#else
#define PERCPU_LOCAL_SHIFT	(VA_BITS_MIN - 2)
#endif

#define PERCPU_LOCAL_BIT	(UL(1) << PERCPU_LOCAL_SHIFT)

/* So much per-CPU data each CPU can have, if there is room. */
#define PERCPU_LOCAL_MAX	SZ_1G
/*
 * If there is less room than this for each CPU, there is no local map, because
 * a kernel without a local map has no such limit. 10000 memory control groups
 * take 17 MiB.
 */
#define PERCPU_LOCAL_MIN	SZ_64M

#define PERCPU_LOWER_START	(_PAGE_END(VA_BITS_MIN))
#define PERCPU_LOWER_END	(PERCPU_LOWER_START + PERCPU_LOCAL_BIT)
#define PERCPU_AREAS_START	(PERCPU_LOWER_START + PERCPU_LOCAL_BIT / 4 * 3)
/*
 * Modules begin above; what runs off the last area should not be in one of
 * them.
 */
#define PERCPU_AREAS_END	(PERCPU_LOWER_END - SZ_8M)

#endif /* __ASM_PERCPU_LOCAL_LAYOUT_H */
