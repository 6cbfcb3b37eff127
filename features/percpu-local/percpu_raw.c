// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instructions of raw_cpu_read() and raw_cpu_add() as they are: through
 * TPIDR, and an addition is a load, an add and a store.
 */
#include <linux/percpu.h>

#define form_read(pcp)		raw_cpu_read_8(pcp)
#define form_add(pcp, v)	raw_cpu_add_8(pcp, v)

#include "percpu_forms.h"
