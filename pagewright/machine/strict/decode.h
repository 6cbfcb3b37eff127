/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What bits mean: of TCR_EL1, of descriptors, and of instructions that
 * maintain TLBs or change memory.  All of it is pure: no state, and nothing of
 * QEMU.
 */
#ifndef STRICT_DECODE_H
#define STRICT_DECODE_H

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t u64;
typedef uint32_t u32;

#define BIT(n)			(1ULL << (n))
#define BITS(value, high, low)	\
	(((value) >> (low)) & (BIT((high) - (low) + 1) - 1))

/* The tables that TTBR1 leads to, as TCR_EL1 describes them. */
struct geometry {
	u32 page_shift;
	u32 va_bits;
	int root_level;		/* -1 to 2; pages are at level 3 */
	bool lpa2;		/* TCR_EL1.DS: 52 bits with small pages */
};

/* Bits of descriptors. */
#define DESC_VALID		BIT(0)
#define DESC_TABLE		BIT(1)	/* at level 3: page */
#define DESC_READ_ONLY		BIT(7)
#define DESC_AF			BIT(10)
#define DESC_NOT_GLOBAL		BIT(11)
#define DESC_DBM		BIT(51)
#define DESC_CONTIGUOUS		BIT(52)
#define DESC_PXN		BIT(53)
#define DESC_SOFTWARE		(15ULL << 55)	/* hardware ignores these */
#define DESC_TABLE_PXN		BIT(59)
#define DESC_TABLE_READ_ONLY	BIT(62)

enum kind { KIND_INVALID, KIND_TABLE, KIND_LEAF };

bool decode_tcr(u64 tcr, struct geometry *geometry);
u32 level_shift(const struct geometry *geometry, int level);
u32 table_entries(const struct geometry *geometry, int level);
u32 contiguous_entries(const struct geometry *geometry, int level);
enum kind desc_kind(u64 desc, int level);
u64 desc_address(const struct geometry *geometry, u64 desc, int level);
bool desc_writable(u64 desc);
u32 desc_memory(const struct geometry *geometry, u64 desc, u64 mair);
u64 root_address(const struct geometry *geometry, u64 ttbr);

/* What a TLBI invalidates, of stage 1 of EL1&0 (or EL2&0). */
struct tlbi {
	enum { TLBI_OTHER, TLBI_ALL, TLBI_ASID, TLBI_VA } what;
	bool broadcast;
	bool last_level;	/* and no entries for tables */
	bool any_asid;		/* of entries that are not global */
	u64 start, end;		/* addresses, if TLBI_VA */
	int level;		/* of the leaf alone; or 0 if any */
	bool other_size;	/* the level is of tables with other pages */
};

bool is_tlbi(u32 code);
void decode_tlbi(const struct geometry *geometry, u32 code, u64 operand,
		 struct tlbi *tlbi);
bool tlbi_reaches(const struct tlbi *tlbi, u64 va, u64 size);

/* What a DSB waits for. */
struct dsb {
	bool inner;		/* all CPUs of the inner shareable domain */
	bool stores;		/* stores before it */
	bool loads;
};

bool is_dsb(u32 code);
bool decode_dsb(u32 code, struct dsb *dsb);

/* Of a load or store: whether it is both. */
bool is_atomic(u32 code);

#endif
