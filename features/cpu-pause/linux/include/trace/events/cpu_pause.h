/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM cpu_pause

#if !defined(_TRACE_CPU_PAUSE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_CPU_PAUSE_H

#include <linux/tracepoint.h>

/**
 * cpu_pause - all other CPUs were paused, or could not be
 * @cpus: how many others there were
 * @arrive_ns: from the request until the last one had stopped, or it was given up
 * @hold_ns: from then until they were let go; 0 if it was given up
 * @given_up: one did not stop in time, and the others were let go unused
 */
TRACE_EVENT(cpu_pause,
	TP_PROTO(unsigned int cpus, u64 arrive_ns, u64 hold_ns, bool given_up),
	TP_ARGS(cpus, arrive_ns, hold_ns, given_up),
	TP_STRUCT__entry(
		__field(unsigned int, cpus)
		__field(u64, arrive_ns)
		__field(u64, hold_ns)
		__field(bool, given_up)
	),
	TP_fast_assign(
		__entry->cpus = cpus;
		__entry->arrive_ns = arrive_ns;
		__entry->hold_ns = hold_ns;
		__entry->given_up = given_up;
	),
	TP_printk("cpus=%u arrive_ns=%llu hold_ns=%llu given_up=%d", __entry->cpus,
		  __entry->arrive_ns, __entry->hold_ns, __entry->given_up)
);

#endif /* _TRACE_CPU_PAUSE_H */

#include <trace/define_trace.h>
