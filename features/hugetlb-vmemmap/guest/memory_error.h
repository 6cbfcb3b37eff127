/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory errors: how a program makes one in a page that it has, hears of it, and
 * repairs the page; and how it knows that its other pages are what they were.
 */
#ifndef MEMORY_ERROR_H
#define MEMORY_ERROR_H

#include <setjmp.h>
#include <signal.h>

#include "pool.h"

#ifndef MADV_HWPOISON
#define MADV_HWPOISON		100
#endif
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE	101
#endif

#define UNPOISON	"/sys/kernel/debug/hwpoison/unpoison-pfn"

static __thread sigjmp_buf out_of_fault;
static __thread volatile sig_atomic_t fault_code;

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	fault_code = info->si_code;
	siglongjmp(out_of_fault, 1);
}

static inline void catch_faults(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	sigaction(SIGBUS, &action, NULL);
}

/* The code of the SIGBUS that a read gets; 0 if it gets none. */
static inline int fault_at(volatile char *p)
{
	fault_code = 0;
	if (!sigsetjmp(out_of_fault, 1))
		(void)*p;
	return fault_code;
}

/* The code of the SIGBUS that a page's error gets us at once; 0 if it does not. */
static inline int fault_from_error_at(char *p, size_t size)
{
	fault_code = 0;
	if (!sigsetjmp(out_of_fault, 1) && madvise(p, size, MADV_HWPOISON))
		return -errno;
	return fault_code;
}

static inline bool repair(unsigned long frame)
{
	int error = number_write(UNPOISON, frame);

	if (error)
		printf("# unpoison of frame %#lx: %s\n", frame, strerror(error));
	return !error;
}

/* Write a number to each page, by which it can be told from others. */
static inline void fill(char *p, size_t size, size_t seed)
{
	size_t i;

	for (i = 0; i < size; i += page_size())
		*(size_t *)(p + i) = i + seed;
}

static inline long wrong_pages(char *p, size_t size, size_t seed)
{
	long wrong = 0;
	size_t i;

	for (i = 0; i < size; i += page_size())
		wrong += *(size_t *)(p + i) != i + seed;
	return wrong;
}

#endif /* MEMORY_ERROR_H */
