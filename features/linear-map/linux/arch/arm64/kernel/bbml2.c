// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPU feature: break-before-make level 2 without TLB conflict aborts.
 *
 * With FEAT_BBM level 2 the size of a live mapping may be changed without making
 * it invalid first. While TLBs hold entries of both sizes, an implementation may
 * answer an access with a TLB conflict abort, which the kernel cannot take in the
 * middle of its own linear map. Some implementations never do. Level 3 says so in
 * the ID register; for those made before there was a level 3, Arm and the other
 * makers say so in their documents, and the list below trusts them.
 *
 * The kernel asks three times:
 *
 *  - the boot CPU of itself, when it paints the linear map and no other CPU runs;
 *  - for the system, when all CPUs that start at boot have started;
 *  - every later CPU of itself: one without the feature is refused, if the system has it.
 *
 * A CPU that is present and has not started may lack it. The system has the feature all the same
 * if somebody requires that; otherwise it has not, so that such a CPU is not refused for what the
 * kernel can do without. How the linear map is split is not asked: HVO splits blocks, too. Who
 * wants neither to do it live turns the feature off (arm64.nobbml2).
 */
#include <linux/cpumask.h>
#include <linux/init.h>
#include <linux/percpu.h>
#include <linux/smp.h>

#include <asm/bbml2.h>
#include <asm/cpu.h>
#include <asm/cpufeature.h>
#include <asm/cputype.h>
#include <asm/sysreg.h>

/* ID_AA64MMFR2_EL1.BBM: level 2 behaviour, and never a TLB conflict abort. */
#define ID_AA64MMFR2_EL1_BBM_LEVEL_3	3

static const struct midr_range bbml2_noabort_list[] = {
	/* r0p3 and later */
	MIDR_RANGE(MIDR_CORTEX_X4, 0, 3, 0xf, 0xf),
	/* r0p2 and later */
	MIDR_RANGE(MIDR_NEOVERSE_V3, 0, 2, 0xf, 0xf),
	MIDR_RANGE(MIDR_NEOVERSE_V3AE, 0, 2, 0xf, 0xf),
	MIDR_ALL_VERSIONS(MIDR_CORTEX_A520AE),
	MIDR_ALL_VERSIONS(MIDR_CORTEX_A715),
	MIDR_ALL_VERSIONS(MIDR_CORTEX_A720AE),
	MIDR_ALL_VERSIONS(MIDR_CORTEX_A725),
	MIDR_ALL_VERSIONS(MIDR_C1_NANO),
	MIDR_ALL_VERSIONS(MIDR_C1_PRO),
	/* r1p1 and later: see bbml2_erratum_list */
	MIDR_RANGE(MIDR_C1_ULTRA, 1, 1, 0xf, 0xf),
	MIDR_RANGE(MIDR_C1_PREMIUM, 1, 1, 0xf, 0xf),
	MIDR_ALL_VERSIONS(MIDR_NEOVERSE_N3),
	MIDR_ALL_VERSIONS(MIDR_NVIDIA_OLYMPUS),
	/* These two behave so, but their ID_AA64MMFR2_EL1.BBM does not say it. */
	MIDR_ALL_VERSIONS(MIDR_AMPERE1),
	MIDR_ALL_VERSIONS(MIDR_AMPERE1A),
	{}
};

/*
 * Erratum 3683289: entries of different sizes for the same address can livelock these,
 * before r1p1. Nothing that their ID register says is believed.
 */
static const struct midr_range bbml2_erratum_list[] = {
	MIDR_RANGE(MIDR_C1_ULTRA, 0, 0, 1, 0),
	MIDR_RANGE(MIDR_C1_PREMIUM, 0, 0, 1, 0),
	{}
};

/**
 * arm64_has_bbml2_noabort() - does a CPU change sizes live, without aborts?
 * @midr: its MIDR_EL1
 * @mmfr2: its ID_AA64MMFR2_EL1
 *
 * What the hardware can do; neither the command line nor other CPUs count.
 *
 * Context: any.
 * Return: true if the ID register or the list of implementations says so, and no erratum
 *	   is known.
 */
bool arm64_has_bbml2_noabort(u32 midr, u64 mmfr2)
{
	if (is_midr_in_range_list(midr, bbml2_erratum_list))
		return false;

	if (cpuid_feature_extract_unsigned_field(mmfr2, ID_AA64MMFR2_EL1_BBM_SHIFT) >=
	    ID_AA64MMFR2_EL1_BBM_LEVEL_3)
		return true;

	return is_midr_in_range_list(midr, bbml2_noabort_list);
}

#ifdef CONFIG_ARM64_BBML2_LACKING_CPUS
static struct cpumask lacking_cpus __ro_after_init;

/*
 * arm64.nobbml2_cpus=<cpu list>: treat these CPUs as if they lacked the feature. No
 * emulator makes machines of unequal CPUs, and the way they are treated wants tests.
 */
static int __init parse_lacking_cpus(char *arg)
{
	return arg ? cpulist_parse(arg, &lacking_cpus) : -EINVAL;
}
early_param("arm64.nobbml2_cpus", parse_lacking_cpus);

static bool is_lacking(int cpu)
{
	return cpumask_test_cpu(cpu, &lacking_cpus);
}
#else
static bool is_lacking(int cpu)
{
	return false;
}
#endif

/**
 * bbml2_noabort_disabled() - was the feature turned off on the command line?
 *
 * Context: any, also before the CPU features are known.
 * Return: true if arm64.nobbml2 was given.
 */
bool bbml2_noabort_disabled(void)
{
	return arm64_test_sw_feature_override(ARM64_SW_FEATURE_OVERRIDE_NOBBML2);
}

/**
 * cpu_has_bbml2_noabort() - does this CPU change sizes live, without aborts?
 *
 * Context: any in which the task stays on its CPU, also before the CPU features
 *	    are known.
 * Return: true if this CPU does and the command line lets it.
 */
bool cpu_has_bbml2_noabort(void)
{
	return !bbml2_noabort_disabled() && !is_lacking(smp_processor_id()) &&
	       arm64_has_bbml2_noabort(read_cpuid_id(), read_cpuid(ID_AA64MMFR2_EL1));
}

/* Can somebody not do without? */
static bool bbml2_required __ro_after_init;

/**
 * bbml2_noabort_require() - sizes are changed live whenever CPUs that start at boot can do it
 *
 * Late CPUs without the feature are refused then.
 *
 * Context: boot, before secondary CPUs start.
 */
void __init bbml2_noabort_require(void)
{
	bbml2_required = true;
}

/**
 * bbml2_noabort_is_required() - has somebody said so?
 *
 * Context: any.
 * Return: true after bbml2_noabort_require().
 */
bool bbml2_noabort_is_required(void)
{
	return bbml2_required;
}

/*
 * The capability's match. The lists go by the part, which no sanitised register has for
 * the whole system: each CPU that is up left its own registers in cpu_data.
 */
bool has_bbml2_noabort(const struct arm64_cpu_capabilities *caps, int scope)
{
	int cpu;

	if (scope & SCOPE_LOCAL_CPU)
		return cpu_has_bbml2_noabort();

	if (bbml2_noabort_disabled())
		return false;

	/* See above for CPUs that have not started. */
	if (!bbml2_required && !cpumask_subset(cpu_present_mask, cpu_online_mask))
		return false;

	for_each_online_cpu(cpu) {
		const struct cpuinfo_arm64 *info = &per_cpu(cpu_data, cpu);

		if (is_lacking(cpu) ||
		    !arm64_has_bbml2_noabort(info->reg_midr, info->reg_id_aa64mmfr2))
			return false;
	}

	return true;
}
