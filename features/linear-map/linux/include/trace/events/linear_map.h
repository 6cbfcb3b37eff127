/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM linear_map

#if !defined(_TRACE_LINEAR_MAP_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_LINEAR_MAP_H

#include <linux/tracepoint.h>

DECLARE_EVENT_CLASS(linear_map_leaf,

	TP_PROTO(unsigned long start, unsigned long size),

	TP_ARGS(start, size),

	TP_STRUCT__entry(
		__field(unsigned long, start)
		__field(unsigned long, size)
	),

	TP_fast_assign(
		__entry->start = start;
		__entry->size = size;
	),

	TP_printk("start=%lx size=%lx", __entry->start, __entry->size)
);

/* A leaf of that size was split into leaves of the next smaller size. */
DEFINE_EVENT(linear_map_leaf, linear_map_split,
	TP_PROTO(unsigned long start, unsigned long size),
	TP_ARGS(start, size)
);

/* Smaller leaves were folded into one of that size. */
DEFINE_EVENT(linear_map_leaf, linear_map_fold,
	TP_PROTO(unsigned long start, unsigned long size),
	TP_ARGS(start, size)
);

TRACE_EVENT(linear_map_change,

	TP_PROTO(unsigned long start, unsigned long end, u64 set, u64 clear, int ret),

	TP_ARGS(start, end, set, clear, ret),

	TP_STRUCT__entry(
		__field(unsigned long, start)
		__field(unsigned long, end)
		__field(u64, set)
		__field(u64, clear)
		__field(int, ret)
	),

	TP_fast_assign(
		__entry->start = start;
		__entry->end = end;
		__entry->set = set;
		__entry->clear = clear;
		__entry->ret = ret;
	),

	TP_printk("start=%lx end=%lx set=%llx clear=%llx ret=%d",
		  __entry->start, __entry->end, __entry->set, __entry->clear,
		  __entry->ret)
);

#endif /* _TRACE_LINEAR_MAP_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
