/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where secondary CPUs wait while the boot CPU repaints the linear map: see
 * linear_map_repaint.c.
 */
#include <linux/cfi_types.h>
#include <linux/linkage.h>

#include <asm/assembler.h>
#include <asm/page.h>
#include <asm/pgtable-hwdef.h>

	.pushsection ".data", "aw", %progbits
	.align	3
/* How many CPUs are parked; the boot CPU sets it to 0 to let them go. */
SYM_DATA(linear_map_parked, .long 0)
	.popsection

	.pushsection ".idmap.text", "a"
/*
 * void linear_map_park(u32 *parked)
 *
 * Runs in the ID map, interrupts off. @parked is the physical address of the counter,
 * which the ID map maps too. Until the counter is 0, TTBR1 has the empty table: neither
 * an access nor speculation can use the linear map or anything else of the kernel's,
 * the stack included.
 */
SYM_TYPED_FUNC_START(linear_map_park)
	mov	x4, x30
	mov	x5, x0
	mrs	x6, ttbr1_el1
	adrp	x0, reserved_pg_dir
	phys_to_ttbr x0, x0
	bl	idmap_cpu_replace_ttbr1		// clobbers x0, x1, x3

1:	ldaxr	w1, [x5]
	add	w1, w1, #1
	stlxr	w2, w1, [x5]
	cbnz	w2, 1b

	sevl
2:	wfe
	ldaxr	w1, [x5]
	cbnz	w1, 2b

	msr	ttbr1_el1, x6
	isb
	ret	x4
SYM_FUNC_END(linear_map_park)
	.popsection
