#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Write what tools/pagewright reads of the machine that this runs on, as the files beside this
# script hold it: a line "@@ /path" precedes what each file says. Lines of the log and of the
# configuration that the command does not look at are left out, to keep the recordings small.
#
# The recordings of guests with a Cortex-A76 were made like this:
#
#	mkdir -p /tmp/overlay/opt && cp tests/machines/record.sh /tmp/overlay/opt
#	pagewright boot patched-4k --cpu cortex-a76 --append hugepages=32 --overlay /tmp/overlay \
#		--run 'sh /opt/record.sh' >tests/machines/cortex-a76.txt
#
# For cortex-a76-pages.txt, --append had "hugepages=32 arm64.linear_map=pages
# hugetlb_vmemmap=pause cpu_pause.wait_us=1". No CPU of an emulated guest stops within 1 us, so
# all pauses failed.
#
# With the argument "tables" the page tables of the kernel are recorded, too.

show()
{
	for file; do
		[ -f "$file" ] || continue
		echo "@@ $file"
		cat "$file"
	done
}

show /proc/version /proc/cmdline /proc/meminfo /proc/vmstat
# What the first CPU can do is enough.
echo "@@ /proc/cpuinfo"
sed '/^$/q' /proc/cpuinfo | sed '/^$/d'
show /proc/sys/kernel/osrelease /proc/sys/kernel/arch /proc/sys/vm/hugetlb_optimize_vmemmap
show /sys/devices/system/cpu/online /sys/devices/system/cpu/possible \
	/sys/devices/system/cpu/present \
	/sys/devices/system/cpu/cpu[0-9]*/regs/identification/midr_el1
show /sys/kernel/mm/hugetlb_vmemmap/*
show /sys/kernel/mm/hugepages/*/free_hugepages /sys/kernel/mm/hugepages/*/nr_hugepages \
	/sys/kernel/mm/hugepages/*/nr_overcommit_hugepages
show /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/cpu_pause/*
show /sys/module/arm64/parameters/linear_map_* /sys/kernel/mm/linear_map/* \
	/sys/kernel/mm/percpu_local/*
# The size of pages is in the description of any mapping.
echo "@@ /proc/self/smaps"
sed 3q /proc/self/smaps
echo "@@ /boot/config-$(uname -r)"
symbols="PREEMPT|_(4K|16K|64K)_PAGES|VMEMMAP|RODATA_FULL|LINEAR_MAP|ATOMIC_WRITE_FAULT"
symbols="$symbols|PERCPU_LOCAL|CPU_PAUSE|VMAP_STACK|PGTABLE_LEVELS|ARM64_VA_BITS"
symbols="$symbols|TRANSPARENT_HUGEPAGE|PTDUMP|KFENCE"
zcat /proc/config.gz | grep -E "^CONFIG_\w*($symbols)\w*="
echo "@@ /dev/kmsg"
lines="Booting Linux|Linux version|Kernel command line:|Memory:|CPU features:|smp:|Dynamic Preempt:"
lines="$lines|linear map:|percpu:|HugeTLB:|atomic-write-fault:|cpu_pause:"
# Each read gives one record, and there is no end of them but an error if none is waited for.
dd if=/dev/kmsg iflag=nonblock bs=16k 2>/dev/null |
	grep -E "^[0-9]+,[0-9]+,[0-9]+,[^;]*;($lines)"
if [ "$1" = tables ]; then
	mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
	show /sys/kernel/debug/kernel_page_tables
fi
