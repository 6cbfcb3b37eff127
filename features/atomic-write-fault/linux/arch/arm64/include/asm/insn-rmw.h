/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Does this A64 instruction store to the location that it loads?
 *
 * An atomic read-modify-write of a page that is not mapped is reported to the
 * kernel as a read.  The fault handler uses aarch64_insn_rmw_class() to find
 * out that a write to the same location follows, so that it can populate the
 * page once, writable, instead of twice.
 *
 * These are all the groups of the load/store encoding space that are matched.
 * Everything else is AARCH64_INSN_RMW_NONE.  The row is insn<29:24>:
 * aarch64_insn_rmw_class() tests bit 29 and switches on the others.
 *
 *	row  mask	value		instructions		 feature
 *	---  ----------	----------	-----------------------  ------------
 *	Exclusives:
 *	08   0x3fe00000	0x08400000	LDXR, LDAXR {B,H}
 *	08   0xbfe00000	0x88600000	LDXP, LDAXP
 *	09   0xbfe00000	0x89400000	LDTXR, LDATXR		 LSUI
 *	Atomics:
 *	08   0x3fa07c00	0x08a07c00	CAS {B,H}		 LSE
 *	08   0xbfa17c01	0x08207c00	CASP			 LSE
 *	09   0xffa07c00	0xc9807c00	CAST			 LSUI
 *	09   0xffa17c01	0x49807c00	CASPT			 LSUI
 *	19   0xbf20fc00	0x19200400	LDTADD			 LSUI
 *	19   0xbf20fc00	0x19201400	LDTCLR			 LSUI
 *	19   0xbf20fc00	0x19203400	LDTSET			 LSUI
 *	19   0xbf20fc00	0x19208400	SWPT			 LSUI
 *	19   0xff20fc00	0x19201000	LDCLRP [a]		 LSE128
 *	19   0xff20fc00	0x19203000	LDSETP [a]		 LSE128
 *	19   0xff20fc00	0x19208000	SWPP [a]		 LSE128
 *	19   0xbf20fc00	0x19200800	RCWCAS, RCWSCAS		 THE
 *	19   0xbf21fc01	0x19200c00	RCWCASP, RCWSCASP	 THE + D128
 *	19   0xbf20fc00	0x19209000	RCWCLRP, RCWSCLRP [a]	 THE + D128
 *	19   0xbf20fc00	0x1920a000	RCWSWPP, RCWSSWPP [a]	 THE + D128
 *	19   0xbf20fc00	0x1920b000	RCWSETP, RCWSSETP [a]	 THE + D128
 *	38   0x3f208c00	0x38200000	LDADD, LDCLR, LDEOR,
 *					LDSET, LDSMAX, LDSMIN,
 *					LDUMAX, LDUMIN {B,H}	 LSE
 *	38   0x3f20fc00	0x38208000	SWP {B,H}		 LSE
 *	38   0xbf20fc00	0x38209000	RCWCLR, RCWSCLR		 THE
 *	38   0xbf20fc00	0x3820a000	RCWSWP, RCWSSWP		 THE
 *	38   0xbf20fc00	0x3820b000	RCWSET, RCWSSET		 THE
 *	3c   0x3f20fc00	0x3c200000	LDFADD, LDBFADD		 LSFE
 *	3c   0x3f20cc00	0x3c204000	LDF{MAX,MIN}{,NM},
 *					LDBF{MAX,MIN}{,NM}	 LSFE
 *	3c   0x3fa0fc1f	0x3c20801f	STFADD, STBFADD		 LSFE
 *	3c   0x3fa0cc1f	0x3c20c01f	STF{MAX,MIN}{,NM},
 *					STBF{MAX,MIN}{,NM}	 LSFE
 *
 * [a]: and neither register of the pair, insn<20:16> and insn<4:0>, is 31.
 *
 * All acquire and release forms are included.  STADD and the other integer ST
 * forms are the LD forms with the zero register as their destination.
 *
 * What the architecture makes UNDEFINED does not match: an odd register of
 * CASP, Rt2 of CAS that is not 31.  What it makes CONSTRAINED UNPREDICTABLE
 * does: LDXR whose Rs or Rt2 is not the 31 that it should be, LDXP to one
 * register twice.  A CPU may execute those as if they were right, and if one
 * takes a data abort, this CPU does.
 *
 * The neighbours that must not match, because they only load or only store:
 * LDAPR, LD64B, ST64B, ST64BV and ST64BV0 in row 38, LDAR, LDLAR, STLR, STLLR,
 * STXR and STXP in row 08, and CPY and SET (FEAT_MOPS) in row 19.
 */
#ifndef __ASM_INSN_RMW_H
#define __ASM_INSN_RMW_H

#include <linux/types.h>

/**
 * enum aarch64_insn_rmw - how an instruction writes the location it reads
 * @AARCH64_INSN_RMW_NONE: it loads only, stores only, or is no access at all
 * @AARCH64_INSN_RMW_ATOMIC: one instruction that stores to the location it
 *	loads; a compare-and-swap is one, though it need not store if the
 *	comparison fails
 * @AARCH64_INSN_RMW_EXCLUSIVE: a load-exclusive: it begins a read-modify-write
 *	that a store-exclusive is expected to complete
 */
enum aarch64_insn_rmw {
	AARCH64_INSN_RMW_NONE,
	AARCH64_INSN_RMW_ATOMIC,
	AARCH64_INSN_RMW_EXCLUSIVE,
};

/* Row 38: atomic memory operations on general-purpose registers. */
static __always_inline bool __aarch64_insn_rmw_atomic_op(u32 insn)
{
	u32 op = (insn >> 12) & 0xf;

	/* 0 to 7: LDADD to LDUMIN; 8: SWP */
	if (op <= 8)
		return true;

	/* RCWCLR, RCWSWP, RCWSET; with bit 31 set these are ST64B and its kind */
	return op <= 11 && !(insn & 0x80000000);
}

/* Row 3c: atomic memory operations on floating-point registers. */
static __always_inline bool __aarch64_insn_rmw_fp_atomic_op(u32 insn)
{
	u32 op = (insn >> 12) & 0x7;

	/* 0: ADD; 4 to 7: MAX, MIN, MAXNM, MINNM */
	if (op != 0 && op < 4)
		return false;

	/* The ST forms, bit 15, have neither an acquire bit nor a destination. */
	return !(insn & 0x8000) || (insn & 0x0080001f) == 0x0000001f;
}

/* Row 08: load/store exclusive and ordered, compare and swap. */
static __always_inline enum aarch64_insn_rmw __aarch64_insn_rmw_excl(u32 insn)
{
	if ((insn & 0x00e00000) == 0x00400000 ||	/* LDXR */
	    (insn & 0x80e00000) == 0x80600000)		/* LDXP */
		return AARCH64_INSN_RMW_EXCLUSIVE;

	if ((insn & 0x00a07c00) == 0x00a07c00 ||	/* CAS */
	    (insn & 0x80a17c01) == 0x00207c00)		/* CASP */
		return AARCH64_INSN_RMW_ATOMIC;

	return AARCH64_INSN_RMW_NONE;
}

/* Row 09: the unprivileged forms of some of row 08. */
static __always_inline enum aarch64_insn_rmw __aarch64_insn_rmw_excl_unpriv(u32 insn)
{
	if ((insn & 0x80e00000) == 0x80400000)		/* LDTXR */
		return AARCH64_INSN_RMW_EXCLUSIVE;

	if ((insn & 0xc0a07c00) == 0xc0807c00 ||	/* CAST */
	    (insn & 0xc0a17c01) == 0x40807c00)		/* CASPT */
		return AARCH64_INSN_RMW_ATOMIC;

	return AARCH64_INSN_RMW_NONE;
}

/* Row 19: 128-bit, unprivileged, and read-check-write compare and swap. */
static __always_inline bool __aarch64_insn_rmw_row19(u32 insn)
{
	u32 op = (insn >> 12) & 0xf;
	u32 rs = (insn >> 16) & 0x1f;
	u32 rt = insn & 0x1f;

	if ((insn & 0x80200000) != 0x00200000)
		return false;

	switch ((insn >> 10) & 0x3) {
	case 0:
		if (rs == 31 || rt == 31)
			return false;
		if (op >= 9 && op <= 11)		/* RCW{CLR,SWP,SET}P */
			return true;
		return !(insn & 0x40000000) &&		/* LDCLRP, LDSETP, SWPP */
		       (op == 1 || op == 3 || op == 8);
	case 1:						/* LDT{ADD,CLR,SET}, SWPT */
		return op == 0 || op == 1 || op == 3 || op == 8;
	case 2:						/* RCWCAS */
		return op == 0;
	default:					/* RCWCASP */
		return op == 0 && !((rs | rt) & 1);
	}
}

/**
 * aarch64_insn_rmw_class() - tell whether an instruction writes what it reads
 * @insn: an A64 instruction as a number (in memory it is always little-endian)
 *
 * Any word may be passed: one that is not an allocated instruction is
 * AARCH64_INSN_RMW_NONE.  Whether the CPU implements the instruction is not
 * checked.
 *
 * Context: any.
 *
 * Return: the class of the instruction.
 */
static __always_inline enum aarch64_insn_rmw aarch64_insn_rmw_class(u32 insn)
{
	bool atomic = false;

	/*
	 * Nearly all loads of a program have bit 29 set: LDR with any address
	 * mode but the literal, LDUR, LDP, of all sizes, general and SIMD.
	 * This one comparison rejects all of them.
	 */
	if (insn & 0x20000000) {
		if ((insn & 0x3b200c00) != 0x38200000)
			return AARCH64_INSN_RMW_NONE;
		atomic = (insn & 0x04000000) ? __aarch64_insn_rmw_fp_atomic_op(insn) :
					       __aarch64_insn_rmw_atomic_op(insn);
		return atomic ? AARCH64_INSN_RMW_ATOMIC : AARCH64_INSN_RMW_NONE;
	}

	switch ((insn >> 24) & 0x1f) {
	case 0x08:
		return __aarch64_insn_rmw_excl(insn);
	case 0x09:
		return __aarch64_insn_rmw_excl_unpriv(insn);
	case 0x19:
		return __aarch64_insn_rmw_row19(insn) ? AARCH64_INSN_RMW_ATOMIC :
							AARCH64_INSN_RMW_NONE;
	default:
		return AARCH64_INSN_RMW_NONE;
	}
}

/**
 * aarch64_insn_may_be_rmw() - reject most plain loads quickly
 * @insn: an A64 instruction as a number
 *
 * For paths that see plain loads nearly always: LDR and LDP with an immediate
 * offset are rejected by two tests of a single bit, LDR with a register offset by
 * four. What passes is for aarch64_insn_rmw_class() to judge.
 *
 * Context: any.
 *
 * Return: false if the class of @insn is AARCH64_INSN_RMW_NONE; true if it has
 * to be looked at.
 */
static __always_inline bool aarch64_insn_may_be_rmw(u32 insn)
{
	/* Rows 08, 09 and 19, and few loads: literal, and SIMD structures */
	if (!(insn & 0x20000000))
		return true;

	/* LDR with an unsigned offset and LDP with a signed one */
	if (insn & 0x01000000)
		return false;

	/* LDUR, LDTR, pre- and post-index */
	if (!(insn & 0x00200000))
		return false;

	/* LDR with a register offset; rows 38 and 3c have bits 11 and 10 clear */
	return !(insn & 0x00000800);
}

#endif /* __ASM_INSN_RMW_H */
