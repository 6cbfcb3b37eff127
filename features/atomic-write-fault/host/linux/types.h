/* SPDX-License-Identifier: GPL-2.0-only */
/* What asm/insn-rmw.h needs of the kernel's <linux/types.h>, for the host. */
#ifndef _HOST_LINUX_TYPES_H
#define _HOST_LINUX_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#ifndef __always_inline
#define __always_inline	inline __attribute__((__always_inline__))
#endif

typedef uint32_t u32;

#endif
