// SPDX-License-Identifier: GPL-2.0-only
/*
 * Count the instructions of the operations on this CPU's data.
 *
 * Reading /sys/kernel/debug/percpu_bench executes every this_cpu
 * operation, on a static variable and through a pointer, and prints a line for
 * each:
 *
 *	read 4 static=21.00 20.00
 *
 * The first number is what the operation costs in a function that does nothing
 * else: such a function is called many times, and so is an empty one, and the
 * difference counts.  It includes forming the variable's address and, where
 * the operation may call the scheduler, a stack frame.  The second number is
 * what each further operation in the same function costs.
 *
 * The unit is a nanosecond.  In an emulator whose clock counts instructions, as
 * QEMU's does with -icount shift=0, that is one executed instruction; on
 * hardware it is time.  Interrupts are off meanwhile, and the smallest of
 * several runs counts, because other CPUs' instructions would be counted too.
 *
 * Nothing here depends on how the operations are made, so that kernels can be
 * compared: this file also compiles as a module of its own.
 */

#include <linux/debugfs.h>
#include <linux/kernel.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/timekeeping.h>
#include <linux/types.h>

/* x86-64 calls a function that it does not export, and this is always a module. */
#if defined(system_has_cmpxchg128) && !defined(CONFIG_X86_64)
#define BENCH_128
#endif

#define CALLS	1000
#define RUNS	7
#define FURTHER	16

typedef void (*operation_fn)(void __percpu *p, u128 a, u128 b);

/**
 * struct operation - an operation on one kind of variable
 * @name: the operation without this_cpu_, and the size of the variable
 * @how: how the variable is found
 * @once: does the operation once
 * @more: does it 1 + FURTHER times
 */
struct operation {
	const char *name;
	const char *how;
	operation_fn once;
	operation_fn more;
};

/*
 * A variable under two names: by the second it looks like one of another file,
 * and the compiler does not form its address from that of a neighbour.
 */
#define DEFINE_VARIABLE(type)						\
static DEFINE_PER_CPU_ALIGNED(type, percpu_bench_##type) __used;	\
DECLARE_PER_CPU(type, percpu_bench_other_##type);			\
asm(".set percpu_bench_other_" #type ", percpu_bench_" #type)

DEFINE_VARIABLE(u8);
DEFINE_VARIABLE(u16);
DEFINE_VARIABLE(u32);
DEFINE_VARIABLE(u64);
#ifdef BENCH_128
DEFINE_VARIABLE(u128);
#endif

#define once(...)	__VA_ARGS__
#define four(...)							\
	do { __VA_ARGS__; __VA_ARGS__; __VA_ARGS__; __VA_ARGS__; } while (0)
/* Once, and FURTHER times. */
#define more(...)	do { __VA_ARGS__; four(four(__VA_ARGS__)); } while (0)

/* Use a value, which takes no instruction. */
#define use(value)		({ asm volatile("" : : "r" (value)); })

/* The operations; a and b are arguments of the function that does one. */
#define do_read(variable)	use(this_cpu_read(variable))
#define do_write(variable)	this_cpu_write(variable, (u64)a)
#define do_inc(variable)	this_cpu_inc(variable)
#define do_add(variable)	this_cpu_add(variable, (u64)a)
#define do_add_return(variable)	use(this_cpu_add_return(variable, (u64)a))
#define do_and(variable)	this_cpu_and(variable, (u64)a)
#define do_or(variable)		this_cpu_or(variable, (u64)a)
#define do_xchg(variable)	use(this_cpu_xchg(variable, (u64)a))
#define do_cmpxchg(variable)	use(this_cpu_cmpxchg(variable, (u64)a, (u64)b))
/* On x86-64 it ends with a semicolon, so that it is no expression. */
#define do_cmpxchg64(variable)						\
({									\
	u64 old = this_cpu_cmpxchg64(variable, (u64)a, (u64)b);		\
	use(old);							\
})
#define do_cmpxchg128(variable)	use(this_cpu_cmpxchg128(variable, a, b))

/*
 * An operation on variables of a type, size bytes big.  The text in the
 * functions keeps the compiler from merging those that are otherwise alike.
 */
#define DEFINE_ALL(type, op, size)					\
static noinline notrace void						\
do_once_##op##_##size##_static(void __percpu *p, u128 a, u128 b)	\
{									\
	asm volatile("/* once static " #op #size " */");		\
	once(do_##op(percpu_bench_other_##type));			\
}									\
static noinline notrace void						\
do_once_##op##_##size##_dynamic(void __percpu *p, u128 a, u128 b)	\
{									\
	asm volatile("/* once dynamic " #op #size " */");		\
	once(do_##op(*(type __percpu *)p));				\
}									\
static noinline notrace void						\
do_more_##op##_##size##_static(void __percpu *p, u128 a, u128 b)	\
{									\
	asm volatile("/* more static " #op #size " */");		\
	more(do_##op(percpu_bench_other_##type));			\
}									\
static noinline notrace void						\
do_more_##op##_##size##_dynamic(void __percpu *p, u128 a, u128 b)	\
{									\
	asm volatile("/* more dynamic " #op #size " */");		\
	more(do_##op(*(type __percpu *)p));				\
}									\
static const struct operation operations_##op##_##size[] = {		\
	{								\
		.name = #op " " #size,					\
		.how = "static",					\
		.once = do_once_##op##_##size##_static,			\
		.more = do_more_##op##_##size##_static,			\
	},								\
	{								\
		.name = #op " " #size,					\
		.how = "dynamic",					\
		.once = do_once_##op##_##size##_dynamic,		\
		.more = do_more_##op##_##size##_dynamic,		\
	},								\
}

DEFINE_ALL(u8, read, 1);
DEFINE_ALL(u16, read, 2);
DEFINE_ALL(u32, read, 4);
DEFINE_ALL(u64, read, 8);
DEFINE_ALL(u8, write, 1);
DEFINE_ALL(u16, write, 2);
DEFINE_ALL(u32, write, 4);
DEFINE_ALL(u64, write, 8);
DEFINE_ALL(u8, inc, 1);
DEFINE_ALL(u16, inc, 2);
DEFINE_ALL(u32, inc, 4);
DEFINE_ALL(u64, inc, 8);
DEFINE_ALL(u8, add, 1);
DEFINE_ALL(u16, add, 2);
DEFINE_ALL(u32, add, 4);
DEFINE_ALL(u64, add, 8);
DEFINE_ALL(u8, add_return, 1);
DEFINE_ALL(u16, add_return, 2);
DEFINE_ALL(u32, add_return, 4);
DEFINE_ALL(u64, add_return, 8);
DEFINE_ALL(u8, and, 1);
DEFINE_ALL(u16, and, 2);
DEFINE_ALL(u32, and, 4);
DEFINE_ALL(u64, and, 8);
DEFINE_ALL(u8, or, 1);
DEFINE_ALL(u16, or, 2);
DEFINE_ALL(u32, or, 4);
DEFINE_ALL(u64, or, 8);
DEFINE_ALL(u8, xchg, 1);
DEFINE_ALL(u16, xchg, 2);
DEFINE_ALL(u32, xchg, 4);
DEFINE_ALL(u64, xchg, 8);
DEFINE_ALL(u8, cmpxchg, 1);
DEFINE_ALL(u16, cmpxchg, 2);
DEFINE_ALL(u32, cmpxchg, 4);
DEFINE_ALL(u64, cmpxchg, 8);
DEFINE_ALL(u64, cmpxchg64, 8);
#ifdef BENCH_128
DEFINE_ALL(u128, cmpxchg128, 16);
#endif

static const struct operation *const operations[] = {
	operations_read_1, operations_read_2,
	operations_read_4, operations_read_8,
	operations_write_1, operations_write_2,
	operations_write_4, operations_write_8,
	operations_inc_1, operations_inc_2,
	operations_inc_4, operations_inc_8,
	operations_add_1, operations_add_2,
	operations_add_4, operations_add_8,
	operations_add_return_1, operations_add_return_2,
	operations_add_return_4, operations_add_return_8,
	operations_and_1, operations_and_2,
	operations_and_4, operations_and_8,
	operations_or_1, operations_or_2,
	operations_or_4, operations_or_8,
	operations_xchg_1, operations_xchg_2,
	operations_xchg_4, operations_xchg_8,
	operations_cmpxchg_1, operations_cmpxchg_2,
	operations_cmpxchg_4, operations_cmpxchg_8,
	operations_cmpxchg64_8,
#ifdef BENCH_128
	operations_cmpxchg128_16,
#endif
};

static noinline notrace void nothing(void __percpu *p, u128 a, u128 b)
{
	asm volatile("/* nothing */");
}

/* Return how long CALLS calls take, in nanoseconds. */
static u64 cost(operation_fn operation, void __percpu *p)
{
	u64 took, best = U64_MAX;
	unsigned long flags;

	for (int run = 0; run < RUNS; run++) {
		local_irq_save(flags);
		took = ktime_get_raw_fast_ns();
		for (int call = 0; call < CALLS; call++)
			operation(p, 1, 2);
		took = ktime_get_raw_fast_ns() - took;
		local_irq_restore(flags);
		best = min(best, took);
	}

	return best;
}

/* Print a number of nanoseconds of DIVISOR calls, per call, with two digits. */
static void print_share(struct seq_file *file, u64 nanoseconds, u32 divisor)
{
	u64 hundredths = DIV_ROUND_CLOSEST_ULL(100 * nanoseconds, divisor);
	u32 rest;
	u64 whole = div_u64_rem(hundredths, 100, &rest);

	seq_printf(file, "%llu.%02u", whole, rest);
}

static int percpu_bench_show(struct seq_file *file, void *unused)
{
	void __percpu *p = __alloc_percpu(sizeof(u128), sizeof(u128));
	u64 empty, first, all;

	if (!p)
		return -ENOMEM;
	empty = cost(nothing, p);
	for (int i = 0; i < 2 * ARRAY_SIZE(operations); i++) {
		const struct operation *o = &operations[i / 2][i % 2];

		first = cost(o->once, p);
		all = cost(o->more, p);
		seq_printf(file, "%s %s=", o->name, o->how);
		print_share(file, first - empty, CALLS);
		seq_putc(file, ' ');
		print_share(file, all - first, CALLS * FURTHER);
		seq_putc(file, '\n');
		cond_resched();
	}
	free_percpu(p);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(percpu_bench);

static struct dentry *percpu_bench_file;

static int __init percpu_bench_init(void)
{
	percpu_bench_file = debugfs_create_file("percpu_bench", 0400, NULL,
						NULL, &percpu_bench_fops);
	return 0;
}
module_init(percpu_bench_init);

static void __exit percpu_bench_exit(void)
{
	debugfs_remove(percpu_bench_file);
}
module_exit(percpu_bench_exit);

MODULE_DESCRIPTION("Count the instructions of the per-CPU operations");
MODULE_LICENSE("GPL");
