// SPDX-License-Identifier: GPL-2.0-only
/*
 * The model of the strict machine with a memory of its own, for tests that
 * tell it what happens and ask what it has reported.
 */
#include <stddef.h>
#include <string.h>

#include "model.h"

#define RAM_BASE	0x40000000ULL
#define RAM_SIZE	(64ULL << 20)
#define MAX_REPORTS	64

static char ram[RAM_SIZE];
static struct report reports[MAX_REPORTS];
static u32 nr_reports, nr_blind;

void *model_memory(u64 pa, u64 size)
{
	if (pa < RAM_BASE || pa - RAM_BASE >= RAM_SIZE ||
	    size > RAM_SIZE - (pa - RAM_BASE))
		return NULL;
	return ram + (pa - RAM_BASE);
}

void model_blind(const char *why)
{
	(void)why;
	nr_blind++;
}

void model_report(const struct report *report)
{
	if (nr_reports < MAX_REPORTS)
		reports[nr_reports++] = *report;
}

u32 test_reports(void);
u32 test_blind(void);
int test_rule(u32 index);
const char *test_words(u32 index);
u64 test_address(u32 index);
u32 test_writer(u32 index);
void test_write(u32 cpu, u64 pa, const char *bytes, u64 size, bool atomic);
void test_tlbi(u32 cpu, u32 code, u64 operand);
void test_dsb(u32 cpu, u32 code);
void test_root(u32 cpu, u64 ttbr);
void test_off(u32 cpu);
void test_power_off(u32 cpu);
void test_access(u32 cpu, u64 va, bool write);
u32 test_records(void);

u32 test_reports(void)
{
	return nr_reports;
}

u32 test_blind(void)
{
	return nr_blind;
}

int test_rule(u32 index)
{
	return reports[index].rule;
}

const char *test_words(u32 index)
{
	return reports[index].words;
}

u64 test_address(u32 index)
{
	return reports[index].address;
}

/* The CPU that had changed the old descriptor. */
u32 test_writer(u32 index)
{
	return reports[index].writer.cpu;
}

u32 test_records(void)
{
	return model.nr_records;
}

static struct site at(u32 cpu)
{
	return (struct site){ .cpu = cpu, .pc = 0x1000 };
}

void test_write(u32 cpu, u64 pa, const char *bytes, u64 size, bool atomic)
{
	memcpy(model_memory(pa, size), bytes, size);
	if (is_table_page(pa))
		model_store(at(cpu), pa, size, atomic);
}

void test_tlbi(u32 cpu, u32 code, u64 operand)
{
	model_tlbi(at(cpu), code, operand);
}

void test_dsb(u32 cpu, u32 code)
{
	model_dsb(at(cpu), code);
}

void test_root(u32 cpu, u64 ttbr)
{
	model_root(at(cpu), ttbr);
}

void test_off(u32 cpu)
{
	model_off(at(cpu));
}

void test_power_off(u32 cpu)
{
	model_power_off(at(cpu));
}

void test_access(u32 cpu, u64 va, bool write)
{
	if (access_has_records(va, 8))
		model_access(at(cpu), va, 8, write);
}
