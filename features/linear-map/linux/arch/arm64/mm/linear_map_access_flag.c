// SPDX-License-Identifier: GPL-2.0-only
/*
 * Splitting blocks of the linear map by their access flag.
 *
 * A TLB holds no translation whose entry lacks the access flag. All of this rests on that rule.
 * Where software manages the flag it follows from what causes a fault, as entries that cause
 * an access flag fault may not be held. Where the hardware does (TCR_EL1.HA), there is no such
 * fault, and it is what the Arm ARM (DDI 0487, section D8) says on hardware management of the
 * Access flag: an entry with the flag clear may not be held, and a walk that needs the
 * translation first sets the flag in memory, with an atomic update. That is how it is read here,
 * and nobody has confirmed it, which is a reason to have this way off. So an entry without the
 * flag is to the TLBs what an invalid one is, except that whoever uses the block meanwhile does
 * not fault:
 *
 *  - clear the flag, which is a change that needs no break-before-make;
 *  - invalidate the TLBs, and wait until that is complete on all CPUs: from here on a CPU
 *    that uses the block sets the flag again;
 *  - exchange the entry for the table, if it still lacks the flag. Then no TLB can hold the
 *    block, and so no TLB will hold it next to what the table maps.
 *
 * The last step is one atomic compare-and-exchange. If it finds the flag set, somebody has
 * used the block, or has walked the tables on speculation. It is a valid block as before
 * then, so that can be tried again, and given up.
 *
 * No CPU is paused, but a block that is used all the time cannot be split like this. Folding
 * cannot be done so either, because what a table maps has many flags. So this is tried
 * before a pause, if it is asked for.
 *
 * It relies on every CPU to set access flags; one that does not would fault on the kernel's
 * own data. A late CPU that does not is refused, but it runs until it has been looked at: so
 * none may be starting meanwhile, and none may have been lost while it was starting.
 */

#include <linux/cpu.h>
#include <linux/irqflags.h>
#include <linux/types.h>

#include <asm/barrier.h>
#include <asm/cmpxchg.h>
#include <asm/cpu_pause.h>
#include <asm/cpufeature.h>
#include <asm/daifflags.h>
#include <asm/linear_map.h>
#include <asm/tlbflush.h>

#include "linear_map.h"

#if IS_ENABLED(CONFIG_ARM64_LINEAR_MAP_KUNIT_TEST)
/* A test has this CPU use a block when its TLB holds it no more. */
const u32 *access_flag_test_use;
#endif

/* Each costs all CPUs their TLBs, so give up soon on a block that is in use. */
#define TRIES	3

/**
 * has_linear_map_access_flag() - can blocks be split by their access flag?
 * @caps: the capability
 * @scope: whether it is asked of this CPU or of all
 *
 * The match of the capability. It is there only if it was asked for, or late CPUs would be
 * refused for nothing.
 *
 * Context: as for other capabilities.
 * Return: true if it was asked for and hardware sets access flags.
 */
bool has_linear_map_access_flag(const struct arm64_cpu_capabilities *caps, int scope)
{
	u64 mmfr1;

	if (!linear_map_by_access_flag)
		return false;

	mmfr1 = scope & SCOPE_LOCAL_CPU ? read_cpuid(ID_AA64MMFR1_EL1) :
					  read_sanitised_ftr_reg(SYS_ID_AA64MMFR1_EL1);

	return cpuid_feature_extract_unsigned_field(mmfr1, ID_AA64MMFR1_EL1_HAFDBS_SHIFT) >=
	       ID_AA64MMFR1_EL1_HAFDBS_AF;
}

/**
 * linear_map_can_use_access_flag() - are splits tried by access flags?
 *
 * Context: any. False until the features of all CPUs are known.
 * Return: true if that was asked for, and all CPUs set access flags.
 */
bool linear_map_can_use_access_flag(void)
{
	return alternative_has_cap_unlikely(ARM64_LINEAR_MAP_BY_ACCESS_FLAG);
}

/*
 * Try once to exchange all that is not done. What this CPU uses of a block in between only
 * sets the flag of that block; to use little, it is noinstr and has no stack protector.
 */
static unsigned int noinstr __no_stack_protector exchange_once(struct exchange *exchanges,
							       unsigned int nr)
{
	unsigned int i, done = 0;

	/* Hardware does not write to an entry that has the flag, and nobody else does. */
	for (i = 0; i < nr; i++)
		if (!exchanges[i].done)
			WRITE_ONCE(*exchanges[i].alias, exchanges[i].old & ~PTE_AF);

	/*
	 * The first barrier makes the entries visible to the walkers of all CPUs before the
	 * invalidation, and what the tables hold before the tables are. After the second
	 * no TLB has what was read from the entries while they had the flag.
	 */
	dsb(ishst);
	__tlbi(vmalle1is);
	dsb(ish);
	__repeat_tlbi_sync(vale1is, 0);
	isb();

#if IS_ENABLED(CONFIG_ARM64_LINEAR_MAP_KUNIT_TEST)
	if (access_flag_test_use)
		READ_ONCE(*access_flag_test_use);
#endif

	for (i = 0; i < nr; i++) {
		u64 old = exchanges[i].old & ~PTE_AF;

		if (exchanges[i].done)
			continue;
		if (arch_cmpxchg_relaxed(exchanges[i].alias, old, exchanges[i].desc) == old) {
			exchanges[i].done = true;
			done++;
		}
	}
	/* As after a table was put where nothing was: no TLB has anything of it. */
	dsb(ishst);
	isb();

	return done;
}

/**
 * exchange_by_access_flag() - exchange blocks for tables that map the same
 * @exchanges: the entries; those that were exchanged are marked as done, all others have
 *	       what they had
 * @nr: how many
 *
 * Context: process context; linear_map_split_lock is held.
 * Return: how many were exchanged; none if that was not asked for, or is not possible here.
 */
unsigned int exchange_by_access_flag(struct exchange *exchanges, unsigned int nr)
{
	unsigned int tries, done = 0;
	unsigned long flags;

	/* Who plugs a CPU holds it for writing, and may be the one who splits. */
	if (!linear_map_can_use_access_flag() || !cpus_read_trylock())
		return 0;

	for (tries = 0; tries < TRIES && done < nr && cpu_pause_knows_all_cpus(); tries++) {
		/* An interrupt would use memory, and perhaps of these blocks. */
		flags = local_daif_save();
		count_for_turns(&flush_turns);
		done += exchange_once(exchanges, nr);
		local_daif_restore(flags);
	}
	cpus_read_unlock();

	return done;
}
