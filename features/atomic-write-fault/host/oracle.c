// SPDX-License-Identifier: GPL-2.0-only
/*
 * The two things that test_decoder.py does to millions of instruction words,
 * as a shared library that it loads with ctypes: classify them with the kernel
 * header under test, and name them with capstone.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <asm/insn-rmw.h>
#include <capstone/capstone.h>

/* Mnemonics met so far; a mnemonic is known by its index.  0: undefined. */
#define MAX_MNEMONICS	4096

static char mnemonics[MAX_MNEMONICS][CS_MNEMONIC_SIZE];
static unsigned int nr_mnemonics = 1;

/**
 * oracle_class() - classify words with the header under test
 * @words: A64 instructions
 * @n: number of words
 * @classes: written: an enum aarch64_insn_rmw for each word
 */
void oracle_class(const uint32_t *words, size_t n, uint8_t *classes)
{
	for (size_t i = 0; i < n; i++)
		classes[i] = aarch64_insn_rmw_class(words[i]);
}

/**
 * oracle_may_be_rmw() - ask the header's quick rejection about words
 * @words: A64 instructions
 * @n: number of words
 * @passed: written: 1 for each word that may be a read-modify-write, else 0
 */
void oracle_may_be_rmw(const uint32_t *words, size_t n, uint8_t *passed)
{
	for (size_t i = 0; i < n; i++)
		passed[i] = aarch64_insn_may_be_rmw(words[i]);
}

/*
 * Consecutive words mostly share a mnemonic, and all mnemonics have been met
 * after a few thousand words, so this is a lookup in a small open hash table.
 */
static int intern(const char *mnemonic)
{
	static uint16_t table[4 * MAX_MNEMONICS];
	uint32_t hash = 5381;

	for (const char *p = mnemonic; *p; p++)
		hash = hash * 33 + (unsigned char)*p;

	for (hash %= 4 * MAX_MNEMONICS; table[hash]; hash = (hash + 1) % (4 * MAX_MNEMONICS))
		if (!strcmp(mnemonics[table[hash]], mnemonic))
			return table[hash];

	if (nr_mnemonics == MAX_MNEMONICS)
		return -1;
	memcpy(mnemonics[nr_mnemonics], mnemonic, strlen(mnemonic) + 1);
	table[hash] = nr_mnemonics;
	return nr_mnemonics++;
}

/**
 * oracle_mnemonic() - the name of an index that oracle_capstone() wrote
 * @index: the index
 *
 * Return: the mnemonic, "" for an undefined instruction, NULL past the last.
 */
const char *oracle_mnemonic(unsigned int index)
{
	return index < nr_mnemonics ? mnemonics[index] : NULL;
}

/**
 * oracle_capstone() - name words with capstone
 * @words: A64 instructions
 * @n: number of words
 * @indices: written: an index for oracle_mnemonic() for each word
 *
 * Return: 0, or -1 if capstone does not start or has too many mnemonics.
 */
int oracle_capstone(const uint32_t *words, size_t n, uint16_t *indices)
{
	cs_insn *insn;
	int ret = 0;
	csh handle;

	if (cs_open(CS_ARCH_ARM64, CS_MODE_LITTLE_ENDIAN, &handle) != CS_ERR_OK)
		return -1;
	insn = cs_malloc(handle);
	for (size_t i = 0; i < n && ret >= 0; i++) {
		const uint8_t *code = (const uint8_t *)&words[i];
		size_t size = sizeof(words[i]);
		uint64_t address = 0;

		ret = 0;
		if (cs_disasm_iter(handle, &code, &size, &address, insn))
			ret = intern(insn->mnemonic);
		indices[i] = ret;
	}
	cs_free(insn, 1);
	cs_close(&handle);
	return ret < 0 ? -1 : 0;
}
