// SPDX-License-Identifier: GPL-2.0-only
/* See decode.h. */
#include "decode.h"

/**
 * decode_tcr() - what TCR_EL1 says of the tables of TTBR1
 * @tcr: its value
 * @geometry: where to say it
 *
 * Return: false if this is nothing that tables can be.
 */
bool decode_tcr(u64 tcr, struct geometry *geometry)
{
	static const u32 shifts[4] = { 0, 14, 12, 16 };	/* TG1 */
	u32 stride;

	geometry->page_shift = shifts[BITS(tcr, 31, 30)];
	geometry->va_bits = 64 - BITS(tcr, 21, 16);	/* T1SZ */
	geometry->lpa2 = (tcr & BIT(59)) && geometry->page_shift < 16;
	if (!geometry->page_shift || geometry->va_bits > 52 ||
	    geometry->va_bits <= geometry->page_shift)
		return false;
	stride = geometry->page_shift - 3;
	geometry->root_level = 4 - (int)((geometry->va_bits -
					  geometry->page_shift + stride - 1) /
					 stride);
	return true;
}

/* An entry of a table of this level maps 1 << this many bytes. */
u32 level_shift(const struct geometry *geometry, int level)
{
	return geometry->page_shift + (3 - level) * (geometry->page_shift - 3);
}

/* The table of the first level may be smaller than a page. */
u32 table_entries(const struct geometry *geometry, int level)
{
	if (level == geometry->root_level)
		return 1U << (geometry->va_bits - level_shift(geometry, level));
	return 1U << (geometry->page_shift - 3);
}

/* How many entries a contiguous group has. */
u32 contiguous_entries(const struct geometry *geometry, int level)
{
	switch (geometry->page_shift) {
	case 14:
		return level == 3 ? 128 : 32;
	case 16:
		return 32;
	default:
		return 16;
	}
}

enum kind desc_kind(u64 desc, int level)
{
	if (!(desc & DESC_VALID))
		return KIND_INVALID;
	if (level == 3)
		return desc & DESC_TABLE ? KIND_LEAF : KIND_INVALID;
	return desc & DESC_TABLE ? KIND_TABLE : KIND_LEAF;
}

/* The address of the next table, or of what a leaf maps. */
u64 desc_address(const struct geometry *geometry, u64 desc, int level)
{
	u64 address;
	u32 low = geometry->page_shift;

	if (desc_kind(desc, level) == KIND_LEAF)
		low = level_shift(geometry, level);
	if (geometry->lpa2)
		address = (desc & (BIT(50) - 1)) | BITS(desc, 9, 8) << 50;
	else if (geometry->page_shift == 16)
		address = (desc & (BIT(48) - 1)) | BITS(desc, 15, 12) << 48;
	else
		address = desc & (BIT(48) - 1);
	return address >> low << low;
}

/* DBM lets hardware make a read-only entry writable. */
bool desc_writable(u64 desc)
{
	return !(desc & DESC_READ_ONLY) || (desc & DESC_DBM);
}

/*
 * Memory type, cacheability and shareability, as a number to compare.  Normal
 * memory with tags and without is the same.  With LPA2 the shareability is
 * not in the descriptor.
 */
u32 desc_memory(const struct geometry *geometry, u64 desc, u64 mair)
{
	u32 type = mair >> 8 * BITS(desc, 4, 2) & 0xff;

	if (type == 0xf0)
		type = 0xff;
	return geometry->lpa2 ? type : type | (u32)BITS(desc, 9, 8) << 8;
}

/* Bits 5 to 2 are the upper ones of 52, and 0 otherwise. */
u64 root_address(const struct geometry *geometry, u64 ttbr)
{
	u64 size = table_entries(geometry, geometry->root_level) * 8ULL;
	u64 address = ttbr & (BIT(48) - 1) & ~(u64)0x3f;

	return (address & ~(size - 1)) | BITS(ttbr, 5, 2) << 48;
}

/* SYS with CRn 8, or 9 (nXS), which all TLBI are. */
bool is_tlbi(u32 code)
{
	u32 crn = BITS(code, 15, 12);

	return (code & 0xfff80000) == 0xd5080000 && (crn == 8 || crn == 9);
}

static u64 sign_extend(u64 value, u32 bits)
{
	return (u64)((int64_t)(value << (64 - bits)) >> (64 - bits));
}

/* The page size in the operand of a TLBI (TG), which is not as in TCR. */
static u32 operand_shift(u64 operand)
{
	static const u32 shifts[4] = { 0, 12, 14, 16 };

	return shifts[BITS(operand, 47, 46)];
}

static void decode_range(const struct geometry *geometry, u64 operand,
			 struct tlbi *tlbi)
{
	u32 shift = operand_shift(operand);
	u64 pages = (BITS(operand, 43, 39) + 1) <<
		    (5 * BITS(operand, 45, 44) + 1);
	u32 unit = geometry->lpa2 ? 16 : shift;

	tlbi->level = BITS(operand, 38, 37);
	/* Of another page size than the tables have: of no effect. */
	if (shift != geometry->page_shift)
		pages = 0;
	tlbi->start = sign_extend(BITS(operand, 36, 0), 37) << unit;
	tlbi->end = tlbi->start + (pages << shift);
}

static void decode_va(const struct geometry *geometry, u64 operand,
		      struct tlbi *tlbi)
{
	u64 page = BIT(geometry->page_shift);

	if (operand_shift(operand)) {
		tlbi->level = BITS(operand, 45, 44);
		/*
		 * As with a wrong level, TLBs may keep what they hold.  Without
		 * a level it is none.
		 */
		tlbi->other_size = tlbi->level && operand_shift(operand) !=
						  geometry->page_shift;
	}
	tlbi->start = sign_extend(BITS(operand, 43, 0) << 12, 56) & ~(page - 1);
	tlbi->end = tlbi->start + page;
}

/**
 * decode_tlbi() - what an instruction invalidates
 * @geometry: what the tables are like
 * @code: the instruction, for which is_tlbi() is true
 * @operand: the contents of its register
 * @tlbi: where to say it
 */
void decode_tlbi(const struct geometry *geometry, u32 code, u64 operand,
		 struct tlbi *tlbi)
{
	u32 op1 = BITS(code, 18, 16), crm = BITS(code, 11, 8);
	u32 op2 = BITS(code, 7, 5);

	*tlbi = (struct tlbi){ .what = TLBI_OTHER };
	if (op1 == 4) {
		/* Of EL2, what concerns EL1 too: ALLE1, VMALLS12E1. */
		if ((crm == 1 || crm == 3 || crm == 7) &&
		    (op2 == 4 || op2 == 6)) {
			tlbi->what = TLBI_ALL;
			tlbi->broadcast = crm != 7;
		}
		return;
	}
	if (op1 != 0)
		return;

	switch (crm) {
	case 1:		/* outer shareable, ranges: 5 */
	case 3:		/* inner shareable, ranges: 2 */
	case 7:		/* this CPU, ranges: 6 */
		tlbi->broadcast = crm != 7;
		if (op2 == 0 || op2 == 2) {
			tlbi->what = op2 ? TLBI_ASID : TLBI_ALL;
			return;
		}
		decode_va(geometry, operand, tlbi);
		break;
	case 2:
	case 5:
	case 6:
		tlbi->broadcast = crm != 6;
		decode_range(geometry, operand, tlbi);
		break;
	default:
		return;
	}
	/* 1: VA, 3: any ASID, 5 and 7: the same of the last level. */
	if (!(op2 & 1))
		return;
	tlbi->what = TLBI_VA;
	tlbi->any_asid = op2 & 2;
	tlbi->last_level = op2 & 4;
}

/*
 * Is an invalidation by address about one of some bytes?  The last page of all
 * ends at 0.
 */
bool tlbi_reaches(const struct tlbi *tlbi, u64 va, u64 size)
{
	return tlbi->start != tlbi->end && va <= tlbi->end - 1 &&
	       va + size - 1 >= tlbi->start;
}

/* The usual ones, and those that need not wait for nXS accesses. */
bool is_dsb(u32 code)
{
	return (code & 0xfffff0ff) == 0xd503309f ||
	       (code & 0xfffff3ff) == 0xd503323f;
}

/**
 * decode_dsb() - what a barrier waits for
 * @code: the instruction, for which is_dsb() is true
 * @dsb: where to say it
 *
 * Return: false if it is a barrier of another kind, that shares the encoding.
 */
bool decode_dsb(u32 code, struct dsb *dsb)
{
	u32 domain, types;

	if ((code & 0xff) == 0x3f) {
		domain = BITS(code, 11, 10);
		types = 3;
	} else {
		domain = BITS(code, 11, 10);
		types = BITS(code, 9, 8);
	}
	if (!types)
		return false;
	dsb->inner = domain != 1;
	dsb->stores = types & 2;
	dsb->loads = types & 1;
	return true;
}

/*
 * Exclusives and CAS; and SWP, LDADD and so on.  The first ones share their
 * encoding with STLR and LDAR, which are stores and loads with an order.
 */
bool is_atomic(u32 code)
{
	return ((code & 0x3f000000) == 0x08000000 &&
		(code & 0x00a00000) != 0x00800000) ||
	       (code & 0x3b200c00) == 0x38200000;
}
