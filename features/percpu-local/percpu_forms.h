/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The benchmark of the operations, with another form of reading and adding.
 *
 * A module defines form_read(pcp) and form_add(pcp, v), for variables of 8
 * bytes, and includes this last. Only what is counted for static variables
 * means something, in a function of its own: there, the compiler cannot make
 * one operation of several.
 */
/* Whatever uses per-CPU data, before the operations are others. */
#include <linux/debugfs.h>
#include <linux/kernel.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/timekeeping.h>

#undef this_cpu_read_8
#undef this_cpu_add_8
#define this_cpu_read_8(pcp)	form_read(pcp)
#define this_cpu_add_8(pcp, v)	form_add(pcp, v)

#include "linux/lib/percpu_bench.c"
