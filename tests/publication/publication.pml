/*
 * Entries of page tables that lead to fresh memory, for the model checker spin.
 *
 * One CPU writes: what fresh memory is to hold, and the entry that leads there. Stores become
 * visible in any order, each when it likes; after a barrier (DMB or DSB of stores) all that
 * came before it are visible. Other CPUs walk at any time, by hardware: each step reads
 * memory, after the step before it has told where. They do so when they only speculate, too,
 * which is why a pause does not replace a barrier. What a walk has found may stay in a TLB, and
 * a table in a walk cache, until an invalidation, which also waits for walks that have begun.
 * Checked is that no walk takes what fresh memory held before, or will hold for its next owner,
 * for an entry or for data, and that none finds nothing where there was something.
 *
 * What is published is chosen with a macro:
 *  SPLIT    a table, in place of a block that is in use
 *  TREE     a table of tables, in place of a block that is broken while nobody walks
 *  REMAP    a page with a copy of what the old page held; the old page gets another owner
 *  MIRROR   an entry that a CPU has a copy of, which its hardware walks; software looks at the
 *           original, and uses the mapping if that is set
 *  FOLD     a block, in place of a table, which gets another owner
 *  FLAG     a table, in place of a block that has no access flag; where the hardware sets the flag,
 *           a walk that needs the block does so first. Checked besides is that no TLB holds the
 *           block when the table is there
 *
 * These leave something out, and spin has to find out what follows:
 *  NO_BARRIER       the barrier before the entry is written; of TREE, the one before others go on
 *  NO_INVALIDATION  the invalidation before memory gets another owner
 *  NO_PAUSE         of TREE: others walk meanwhile
 *  NO_COMPARISON    of FLAG: the entry is written, whether it still lacks the flag or not
 */

/* Where there is something to read. */
#define ENTRY	0	/* in use; all walks begin here */
#define TABLE	1	/* an entry of the table */
#define LOWER	2	/* an entry of the table below that */
#define COPY	3	/* what the hardware of a CPU walks instead of ENTRY */
#define OLD	4	/* a page */
#define NEW	5	/* another page */
#define PLACES	6

/* What an entry may lead to, beyond these places. */
#define NOTHING	6
#define BLOCK	7

/* What a page may hold. */
#define CONTENTS	8
/* What is neither an entry nor contents: fresh memory before, and that of another owner. */
#define OTHER	9

/* A block without access flag. */
#define IDLE	10

byte memory[PLACES];

/* Stores that are not visible yet. There is one for a place, at most. */
bool waits[PLACES];
byte value[PLACES];

/* Walks that have begun, the TLB and the walk cache of the CPU that walks. */
bool walking;
byte tlb = NOTHING;
byte walk_cache = NOTHING;
bool paused;
bool ready;

inline store(place, what)
{
	/* Stores to one place become visible in their order. */
	atomic {
		!waits[place];
		value[place] = what;
		waits[place] = true;
	}
}

#define ALL_VISIBLE (!waits[ENTRY] && !waits[TABLE] && !waits[LOWER] && !waits[COPY] && \
		     !waits[OLD] && !waits[NEW])

inline barrier()
{
	ALL_VISIBLE;
}

inline publication_barrier()
{
#ifdef NO_BARRIER
	skip;
#else
	barrier();
#endif
}

/* A barrier, the TLBI, and the barrier that waits for it and for walks. */
inline invalidate()
{
#ifdef NO_INVALIDATION
	skip;
#else
	barrier();
	atomic {
		!walking;
		tlb = NOTHING;
		walk_cache = NOTHING;
	}
#endif
}

active proctype visibility()
{
	byte i;

end:
	do
	:: atomic {
		select (i : 0 .. (PLACES - 1));
		if
		:: waits[i] -> memory[i] = value[i]; waits[i] = false
		:: else
		fi
	   }
	od
}

active proctype writer()
{
	atomic {
		memory[TABLE] = OTHER;
		memory[LOWER] = OTHER;
		memory[COPY] = NOTHING;
		memory[OLD] = CONTENTS;
		memory[NEW] = OTHER;
#ifdef FOLD
		memory[TABLE] = OLD;
		memory[ENTRY] = TABLE;
#endif
#ifdef REMAP
		memory[ENTRY] = OLD;
#endif
#if defined(SPLIT) || defined(TREE) || defined(FLAG)
		memory[ENTRY] = BLOCK;
#endif
#ifdef MIRROR
		memory[ENTRY] = NOTHING;
		memory[NEW] = CONTENTS;
#endif
		ready = true;
	}

#ifdef SPLIT
	store(TABLE, OLD);
	publication_barrier();
	store(ENTRY, TABLE);
#endif
#ifdef TREE
	store(LOWER, OLD);
	store(TABLE, LOWER);
#ifndef NO_PAUSE
	atomic { !walking; paused = true; }
#endif
	store(ENTRY, NOTHING);
	/* Its barrier also makes the tables visible before the entry that leads to them. */
	invalidate();
	store(ENTRY, TABLE);
	publication_barrier();
	paused = false;
#endif
#ifdef FLAG
	store(TABLE, OLD);
	store(ENTRY, IDLE);
	/* Its barrier also makes the table visible before the entry that leads to it. */
	invalidate();
#ifdef NO_COMPARISON
	store(ENTRY, TABLE);
	barrier();
	assert(tlb != BLOCK);
#else
	atomic {
		!waits[ENTRY];
		if
		:: memory[ENTRY] == IDLE -> memory[ENTRY] = TABLE; assert(tlb != BLOCK)
		:: else
		fi
	}
#endif
#endif
#ifdef REMAP
	store(NEW, CONTENTS);
	publication_barrier();
	store(ENTRY, NEW);
	invalidate();
	/* The next owner writes to it. */
	store(OLD, OTHER);
#endif
#ifdef MIRROR
	store(COPY, NEW);
	publication_barrier();
	store(ENTRY, NEW);
#endif
#ifdef FOLD
	store(ENTRY, BLOCK);
	invalidate();
	store(TABLE, OTHER);
#endif
}

/* Find what an address leads to, and use it. */
proctype walker()
{
	byte at, turn;
	bool speculative;

	ready;
	for (turn : 1 .. 3) {
		if
		:: atomic { !paused; walking = true; speculative = false; }
		/* A CPU that is paused speculates all the same, and remembers what it has found. */
		:: atomic { walking = true; speculative = true; }
		fi;
#ifdef MIRROR
		/* Software looks whether it may. */
		if
		:: memory[ENTRY] == NOTHING -> goto next
		:: else
		fi;
		at = COPY;
#else
		at = ENTRY;
#endif
		if
		:: tlb != NOTHING -> at = tlb
		:: walk_cache != NOTHING -> at = walk_cache; goto read
		:: true ->
read:			do
			:: at < OLD ->
				at = memory[at];
				assert(at != OTHER && (at != NOTHING || speculative));
				if
				:: at == NOTHING -> goto next
				:: at == TABLE -> walk_cache = at
				:: at == IDLE -> atomic {
					/* The flag is set if the entry is still what was read. */
					if
					:: memory[ENTRY] == IDLE -> memory[ENTRY] = BLOCK; at = BLOCK
					:: else -> at = ENTRY
					fi
				   }
				:: else
				fi
			:: else -> break
			od;
			if
			:: tlb = at
#ifdef FLAG
			   ; assert(at != BLOCK || memory[ENTRY] != TABLE)
#endif
			:: true
			fi
		fi;
		/* A block leads to the old page, too. */
		assert(at == BLOCK || memory[at] == CONTENTS || speculative);
next:
		walking = false
	}
}

init
{
	run walker();
}
