/* SPDX-License-Identifier: GPL-2.0-only */
/* What the rest of the per-CPU allocator needs of mm/percpu-local.c. */
#ifndef _MM_PERCPU_LOCAL_H
#define _MM_PERCPU_LOCAL_H

#ifdef CONFIG_HAVE_PERCPU_LOCAL_MAP

static bool percpu_local_is_used(void);
static void *percpu_local_get_area(gfp_t gfp);
static void percpu_local_put_area(void *base_addr);
static void percpu_local_map_pages(struct pcpu_chunk *chunk, int page_start,
				   int page_end);
static void percpu_local_flush(struct pcpu_chunk *chunk, int page_start,
			       int page_end);

#else

static inline bool percpu_local_is_used(void)
{
	return false;
}

static inline void *percpu_local_get_area(gfp_t gfp)
{
	return NULL;
}

static inline void percpu_local_put_area(void *base_addr)
{
}

static inline void percpu_local_map_pages(struct pcpu_chunk *chunk,
					  int page_start, int page_end)
{
}

static inline void percpu_local_flush(struct pcpu_chunk *chunk, int page_start,
				      int page_end)
{
}

#endif /* CONFIG_HAVE_PERCPU_LOCAL_MAP */

#endif /* _MM_PERCPU_LOCAL_H */
