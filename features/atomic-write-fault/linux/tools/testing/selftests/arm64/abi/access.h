/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory accesses by name: one function per instruction (or, for the exclusives,
 * per read-modify-write loop), and a model of what it does to memory.
 *
 * The tests and measuring programs of this folder ask the same question of many
 * instructions: how often does this one fault on a page nobody touched, and is
 * the memory right afterwards?  ACCESS_LIST below names every instruction once;
 * the functions, the table and the expected values are all generated from it.
 *
 * An access works on one element (or two, for the pair instructions) of 1, 2, 4
 * or 8 bytes, with 1 as the operand: store 1, add 1, clear bit 0, exchange with
 * 1, compare with 0 and exchange with 1 ...  A name is the mnemonic; "_w" stands
 * for the 32-bit form, "_only" for a load-exclusive that no store follows.
 */
#ifndef ACCESS_H
#define ACCESS_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

#ifndef HWCAP_ATOMICS
#define HWCAP_ATOMICS		(1UL << 8)
#endif
#ifndef HWCAP_LRCPC
#define HWCAP_LRCPC		(1UL << 15)
#endif
#ifndef HWCAP_ILRCPC
#define HWCAP_ILRCPC		(1UL << 26)
#endif
#ifndef HWCAP2_LSE128
#define HWCAP2_LSE128		(1UL << 47)
#endif

/* How the fault handler should see an access. */
enum access_class {
	ACCESS_LOAD,		/* only reads: never a write fault */
	ACCESS_STORE,		/* only writes: always a write fault */
	ACCESS_ATOMIC,		/* one instruction that reads and writes */
	ACCESS_EXCLUSIVE,	/* load-exclusive, then store-exclusive */
	ACCESS_EXCLUSIVE_LOAD,	/* load-exclusive, then nothing */
};

enum access_op {
	OP_LOAD, OP_STORE, OP_ADD, OP_CLR, OP_EOR, OP_SET, OP_SMAX, OP_SMIN,
	OP_UMAX, OP_UMIN, OP_SWP, OP_CAS,
};

struct access {
	const char *name;
	enum access_class class;
	enum access_op op;
	unsigned int bytes;	/* of one element */
	bool pair;		/* two elements, one after the other */
	unsigned long hwcap;	/* AT_HWCAP bits the instruction needs */
	unsigned long hwcap2;	/* AT_HWCAP2 bits it needs */
	void (*run)(void *p);
};

/*
 * The list.  X(generator, function name, mnemonic, register prefix, bytes, op,
 * class, hwcap): the generator is one of the GEN_ macros below, which emits the
 * body of the function.
 */
#define LSE_SIZES(X, gen, m, op)						\
	X(gen, m##b, #m "b", "w", 1, op, ATOMIC, HWCAP_ATOMICS)			\
	X(gen, m##h, #m "h", "w", 2, op, ATOMIC, HWCAP_ATOMICS)			\
	X(gen, m##_w, #m, "w", 4, op, ATOMIC, HWCAP_ATOMICS)			\
	X(gen, m, #m, "x", 8, op, ATOMIC, HWCAP_ATOMICS)

#define LSE_ORDERS(X, gen, m, op)						\
	LSE_SIZES(X, gen, m, op)						\
	LSE_SIZES(X, gen, m##a, op)						\
	LSE_SIZES(X, gen, m##l, op)						\
	LSE_SIZES(X, gen, m##al, op)

#define LSE_LD_ST(X, m, op)							\
	LSE_ORDERS(X, GEN_LD_OP, ld##m, op)					\
	LSE_SIZES(X, GEN_ST_OP, st##m, op)					\
	LSE_SIZES(X, GEN_ST_OP, st##m##l, op)

#define CASP_SIZES(X, m)							\
	X(GEN_CASP, m##_w, #m, "w", 4, CAS, ATOMIC, HWCAP_ATOMICS)		\
	X(GEN_CASP, m, #m, "x", 8, CAS, ATOMIC, HWCAP_ATOMICS)

#define EXCLUSIVE_SIZES(X, gen, suffix, op, class, m)				\
	X(gen, m##b##suffix, "b", "w", 1, op, class, 0)				\
	X(gen, m##h##suffix, "h", "w", 2, op, class, 0)				\
	X(gen, m##_w##suffix, "", "w", 4, op, class, 0)				\
	X(gen, m##suffix, "", "x", 8, op, class, 0)

#define EXCLUSIVE_PAIR_SIZES(X, gen, suffix, op, class, m)			\
	X(gen, m##_w##suffix, "", "w", 4, op, class, 0)				\
	X(gen, m##suffix, "", "x", 8, op, class, 0)

#define ACCESS_SINGLE_LIST(X)							\
	X(GEN_STORE, store, "str", "x", 8, STORE, STORE, 0)			\
	X(GEN_STORE, strb, "strb", "w", 1, STORE, STORE, 0)			\
	X(GEN_STORE, stlr, "stlr", "x", 8, STORE, STORE, 0)			\
	X(GEN_STORE, sttr, "sttr", "x", 8, STORE, STORE, 0)			\
	X(GEN_LOAD, load, "ldr", "x", 8, LOAD, LOAD, 0)				\
	X(GEN_LOAD, ldrb, "ldrb", "w", 1, LOAD, LOAD, 0)			\
	X(GEN_LOAD, ldar, "ldar", "x", 8, LOAD, LOAD, 0)			\
	X(GEN_LOAD, ldtr, "ldtr", "x", 8, LOAD, LOAD, 0)			\
	X(GEN_LOAD, ldaprb, "ldaprb", "w", 1, LOAD, LOAD, HWCAP_LRCPC)		\
	X(GEN_LOAD, ldaprh, "ldaprh", "w", 2, LOAD, LOAD, HWCAP_LRCPC)		\
	X(GEN_LOAD, ldapr_w, "ldapr", "w", 4, LOAD, LOAD, HWCAP_LRCPC)		\
	X(GEN_LOAD, ldapr, "ldapr", "x", 8, LOAD, LOAD, HWCAP_LRCPC)		\
	X(GEN_LOAD, ldapur, "ldapur", "x", 8, LOAD, LOAD, HWCAP_ILRCPC)		\
	LSE_LD_ST(X, add, ADD)							\
	LSE_LD_ST(X, clr, CLR)							\
	LSE_LD_ST(X, eor, EOR)							\
	LSE_LD_ST(X, set, SET)							\
	LSE_LD_ST(X, smax, SMAX)						\
	LSE_LD_ST(X, smin, SMIN)						\
	LSE_LD_ST(X, umax, UMAX)						\
	LSE_LD_ST(X, umin, UMIN)						\
	LSE_ORDERS(X, GEN_LD_OP, swp, SWP)					\
	LSE_ORDERS(X, GEN_CAS, cas, CAS)					\
	EXCLUSIVE_SIZES(X, GEN_LDXR, , ADD, EXCLUSIVE, ldxr)			\
	EXCLUSIVE_SIZES(X, GEN_LDAXR, , ADD, EXCLUSIVE, ldaxr)			\
	EXCLUSIVE_SIZES(X, GEN_LDXR_ONLY, _only, LOAD, EXCLUSIVE_LOAD, ldxr)	\
	EXCLUSIVE_SIZES(X, GEN_LDAXR_ONLY, _only, LOAD, EXCLUSIVE_LOAD, ldaxr)

#define ACCESS_PAIR_LIST(X)							\
	CASP_SIZES(X, casp)							\
	CASP_SIZES(X, caspa)							\
	CASP_SIZES(X, caspl)							\
	CASP_SIZES(X, caspal)							\
	EXCLUSIVE_PAIR_SIZES(X, GEN_LDXP, , ADD, EXCLUSIVE, ldxp)		\
	EXCLUSIVE_PAIR_SIZES(X, GEN_LDAXP, , ADD, EXCLUSIVE, ldaxp)		\
	EXCLUSIVE_PAIR_SIZES(X, GEN_LDXP_ONLY, _only, LOAD, EXCLUSIVE_LOAD, ldxp) \
	EXCLUSIVE_PAIR_SIZES(X, GEN_LDAXP_ONLY, _only, LOAD, EXCLUSIVE_LOAD, ldaxp)

/* LSE128, which the assembler may not know: X(name, encoding, op). */
#define LSE128_ORDERS(X, m, code, op)						\
	X(m, code, op)								\
	X(m##a, (code) | 1 << 23, op)						\
	X(m##l, (code) | 1 << 22, op)						\
	X(m##al, (code) | 1 << 23 | 1 << 22, op)

#define ACCESS_LSE128_LIST(X)							\
	LSE128_ORDERS(X, ldclrp, 0x19201000, CLR)				\
	LSE128_ORDERS(X, ldsetp, 0x19203000, SET)				\
	LSE128_ORDERS(X, swpp, 0x19208000, SWP)

/* The bodies.  m: mnemonic or its size suffix; r: register prefix. */
#define ARCH	".arch armv8.4-a\n\t"

#define GEN_STORE(m, r)								\
	asm volatile(ARCH m " %" r "[v], [%[p]]"				\
		     : : [v] "r" (1UL), [p] "r" (p) : "memory")

#define GEN_LOAD(m, r)								\
	asm volatile(ARCH m " %" r "[old], [%[p]]"				\
		     : [old] "=&r" (old) : [p] "r" (p) : "memory")

#define GEN_LD_OP(m, r)								\
	asm volatile(ARCH m " %" r "[v], %" r "[old], [%[p]]"			\
		     : [old] "=&r" (old) : [v] "r" (1UL), [p] "r" (p) : "memory")

#define GEN_ST_OP(m, r)								\
	asm volatile(ARCH m " %" r "[v], [%[p]]"				\
		     : : [v] "r" (1UL), [p] "r" (p) : "memory")

#define GEN_CAS(m, r)								\
	asm volatile(ARCH m " %" r "[old], %" r "[v], [%[p]]"			\
		     : [old] "+&r" (old) : [v] "r" (1UL), [p] "r" (p) : "memory")

#define GEN_CASP(m, r)								\
	asm volatile(ARCH							\
		     "mov x2, #0\n\tmov x3, #0\n\tmov x4, #1\n\tmov x5, #1\n\t"	\
		     m " " r "2, " r "3, " r "4, " r "5, [%[p]]"		\
		     : : [p] "r" (p) : "x2", "x3", "x4", "x5", "memory")

#define GEN_EXCLUSIVE_LOOP(ld, st, r)						\
	asm volatile("1:	" ld " %" r "[old], [%[p]]\n\t"			\
		     "add %[new], %[old], #1\n\t"				\
		     st " %w[failed], %" r "[new], [%[p]]\n\t"			\
		     "cbnz %w[failed], 1b"					\
		     : [old] "=&r" (old), [new] "=&r" (new),			\
		       [failed] "=&r" (failed) : [p] "r" (p) : "memory")

#define GEN_EXCLUSIVE_PAIR_LOOP(ld, st, r)					\
	asm volatile("1:	" ld " %" r "[old], %" r "[new], [%[p]]\n\t"	\
		     "add %[old], %[old], #1\n\t"				\
		     st " %w[failed], %" r "[old], %" r "[new], [%[p]]\n\t"	\
		     "cbnz %w[failed], 1b"					\
		     : [old] "=&r" (old), [new] "=&r" (new),			\
		       [failed] "=&r" (failed) : [p] "r" (p) : "memory")

#define GEN_EXCLUSIVE_LOAD(ld, r)						\
	asm volatile(ld " %" r "[old], [%[p]]\n\tclrex"				\
		     : [old] "=&r" (old) : [p] "r" (p) : "memory")

#define GEN_EXCLUSIVE_PAIR_LOAD(ld, r)						\
	asm volatile(ld " %" r "[old], %" r "[new], [%[p]]\n\tclrex"		\
		     : [old] "=&r" (old), [new] "=&r" (new) : [p] "r" (p) : "memory")

#define GEN_LDXR(m, r)		GEN_EXCLUSIVE_LOOP("ldxr" m, "stxr" m, r)
#define GEN_LDAXR(m, r)		GEN_EXCLUSIVE_LOOP("ldaxr" m, "stlxr" m, r)
#define GEN_LDXP(m, r)		GEN_EXCLUSIVE_PAIR_LOOP("ldxp", "stxp", r)
#define GEN_LDAXP(m, r)		GEN_EXCLUSIVE_PAIR_LOOP("ldaxp", "stlxp", r)
#define GEN_LDXR_ONLY(m, r)	GEN_EXCLUSIVE_LOAD("ldxr" m, r)
#define GEN_LDAXR_ONLY(m, r)	GEN_EXCLUSIVE_LOAD("ldaxr" m, r)
#define GEN_LDXP_ONLY(m, r)	GEN_EXCLUSIVE_PAIR_LOAD("ldxp", r)
#define GEN_LDAXP_ONLY(m, r)	GEN_EXCLUSIVE_PAIR_LOAD("ldaxp", r)

#define ACCESS_FUNCTION(gen, name, m, r, bytes, op, class, hwcap)		\
static void access_run_##name(void *p)						\
{										\
	unsigned long old = 0, new = 0, failed = 0;				\
										\
	gen(m, r);								\
	(void)old;								\
	(void)new;								\
	(void)failed;								\
}

/* Rt = x4 and Rt2 = x5 hold the operand, Rn = x3 the address. */
#define ACCESS_LSE128_FUNCTION(name, code, op)					\
static void access_run_##name(void *p)						\
{										\
	asm volatile("mov x3, %[p]\n\tmov x4, #1\n\tmov x5, #1\n\t"		\
		     ".inst %c[insn]"						\
		     : : [p] "r" (p), [insn] "i" ((code) | 5 << 16 | 3 << 5 | 4) \
		     : "x3", "x4", "x5", "memory");				\
}

ACCESS_SINGLE_LIST(ACCESS_FUNCTION)
ACCESS_PAIR_LIST(ACCESS_FUNCTION)
ACCESS_LSE128_LIST(ACCESS_LSE128_FUNCTION)

#define ACCESS_SINGLE_ENTRY(gen, fn, m, r, size, operation, cls, cap)		\
	{ .name = #fn, .class = ACCESS_##cls, .op = OP_##operation,		\
	  .bytes = size, .hwcap = cap, .run = access_run_##fn },

#define ACCESS_PAIR_ENTRY(gen, fn, m, r, size, operation, cls, cap)		\
	{ .name = #fn, .class = ACCESS_##cls, .op = OP_##operation,		\
	  .bytes = size, .pair = true, .hwcap = cap, .run = access_run_##fn },

#define ACCESS_LSE128_ENTRY(fn, code, operation)				\
	{ .name = #fn, .class = ACCESS_ATOMIC, .op = OP_##operation, .bytes = 8, \
	  .pair = true, .hwcap2 = HWCAP2_LSE128, .run = access_run_##fn },

static const struct access access_table[] = {
	ACCESS_SINGLE_LIST(ACCESS_SINGLE_ENTRY)
	ACCESS_PAIR_LIST(ACCESS_PAIR_ENTRY)
	ACCESS_LSE128_LIST(ACCESS_LSE128_ENTRY)
};

#ifndef ARRAY_SIZE
#define ARRAY_SIZE(array)	(sizeof(array) / sizeof((array)[0]))
#endif

#define for_each_access(a)							\
	for (a = access_table; a < access_table + ARRAY_SIZE(access_table); a++)

static inline const char *access_class_name(const struct access *a)
{
	static const char * const names[] = {
		[ACCESS_LOAD] = "load",
		[ACCESS_STORE] = "store",
		[ACCESS_ATOMIC] = "atomic",
		[ACCESS_EXCLUSIVE] = "exclusive",
		[ACCESS_EXCLUSIVE_LOAD] = "exclusive-load",
	};

	return names[a->class];
}

/* The access of that name, or NULL. */
static inline const struct access *access_find(const char *name)
{
	const struct access *a;

	for_each_access(a) {
		if (!strcmp(a->name, name))
			return a;
	}
	return NULL;
}

/* Does this CPU have the instruction? */
static inline bool access_supported(const struct access *a)
{
	return (getauxval(AT_HWCAP) & a->hwcap) == a->hwcap &&
	       (getauxval(AT_HWCAP2) & a->hwcap2) == a->hwcap2;
}

/* Does it write (if its store happens and its comparison holds)? */
static inline bool access_writes(const struct access *a)
{
	return a->class != ACCESS_LOAD && a->class != ACCESS_EXCLUSIVE_LOAD;
}

static inline unsigned long access_get(const struct access *a, const void *p, int i)
{
	unsigned long value = 0;

	memcpy(&value, (const char *)p + i * a->bytes, a->bytes);
	return value;
}

static inline void access_put(const struct access *a, void *p, int i, unsigned long value)
{
	memcpy((char *)p + i * a->bytes, &value, a->bytes);
}

/* One element after the operation, given its value before it. */
static inline unsigned long access_result(const struct access *a, unsigned long old)
{
	int shift = 64 - 8 * a->bytes;
	long sold = (long)(old << shift) >> shift;

	switch (a->op) {
	case OP_LOAD:
		return old;
	case OP_STORE:
	case OP_SWP:
	case OP_CAS:
		return 1;
	case OP_ADD:
		return old + 1;
	case OP_CLR:
		return old & ~1UL;
	case OP_EOR:
		return old ^ 1;
	case OP_SET:
		return old | 1;
	case OP_SMAX:
		return sold > 1 ? old : 1;
	case OP_SMIN:
		return sold < 1 ? old : 1;
	case OP_UMAX:
		return old > 1 ? old : 1;
	case OP_UMIN:
		return old < 1 ? old : 1;
	}
	return old;
}

/* Do to the (at most 16) bytes at p what the access would do. */
static inline void access_model(const struct access *a, void *p)
{
	unsigned long first = access_get(a, p, 0);
	unsigned long second = a->pair ? access_get(a, p, 1) : 0;

	if (a->op == OP_CAS && (first || second))
		return;
	access_put(a, p, 0, access_result(a, first));
	/* The exclusive pair loops write the second element back unchanged. */
	if (a->pair && a->class == ACCESS_ATOMIC)
		access_put(a, p, 1, access_result(a, second));
}

/*
 * Set the 16 bytes at p to something that the access changes (unless it only
 * loads): 0 for most, 3 where 0 would stay 0.
 */
static inline void access_initial(const struct access *a, void *p)
{
	unsigned long value[2] = { 0, 0 };
	unsigned long after[2] = { 0, 0 };

	access_model(a, after);
	if (!memcmp(value, after, sizeof(after)))
		access_put(a, value, 0, 3);
	memcpy(p, value, sizeof(value));
}

#endif /* ACCESS_H */
