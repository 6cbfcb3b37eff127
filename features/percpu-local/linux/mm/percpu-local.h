/* SPDX-License-Identifier: GPL-2.0-only */
/* What the rest of the per-CPU allocator needs of mm/percpu-local.c. */
#ifndef _MM_PERCPU_LOCAL_H
#define _MM_PERCPU_LOCAL_H

#ifdef CONFIG_HAVE_LOCAL_PER_CPU_MAP

static bool pcpu_is_local(void);
static struct page *pcpu_local_addr_to_page(void *addr);
static void *pcpu_local_get_area(gfp_t gfp);
static void pcpu_local_put_area(void *base_addr);
static void pcpu_local_map_pages(struct pcpu_chunk *chunk, int page_start, int page_end);
static void pcpu_local_flush(struct pcpu_chunk *chunk, int page_start, int page_end);

#else

static inline bool pcpu_is_local(void) { return false; }
static inline struct page *pcpu_local_addr_to_page(void *addr) { return NULL; }
static inline void *pcpu_local_get_area(gfp_t gfp) { return NULL; }
static inline void pcpu_local_put_area(void *base_addr) { }
static inline void pcpu_local_map_pages(struct pcpu_chunk *chunk, int page_start,
					int page_end) { }
static inline void pcpu_local_flush(struct pcpu_chunk *chunk, int page_start,
				    int page_end) { }

#endif /* CONFIG_HAVE_LOCAL_PER_CPU_MAP */

#endif /* _MM_PERCPU_LOCAL_H */
