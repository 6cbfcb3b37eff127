// SPDX-License-Identifier: GPL-2.0-only
/*
 * A plugin of QEMU that tells the model (tlb.h) what a guest accesses, and
 * writes what that cost to a file.
 *
 * All code is instrumented: its loads and stores, the pages that it is executed
 * from, and the instructions that maintain TLBs or load the registers of
 * translation.  All CPUs have to be in one thread (-icount, or thread=single),
 * so there is no lock.
 *
 * Arguments: geometries=FILE has a line for each geometry (tlb_geometry()), and
 * ranges=FILE, which need not be there, one for each range (tlb_range()).
 * counts=FILE takes the counts when the guest executes MARK, an instruction
 * that does nothing.  QEMU gives the guest the same file as a device
 * (ivshmem-plain); a guest program that maps the device reads them.  The file
 * begins as that of ../count.c does.
 *
 * TLBs are simulated from the first MARK on, so that booting is faster.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../shared/qemu.h"
#include "tlb.h"

#define MARK		0xd5032fffu	/* hint #127 */
#define SMALLEST_PAGE	4096

/* What the guest reads. */
struct named {
	char name[56];
	u64 value;
};

struct file {
	u64 kernel;		/* instructions */
	u64 user;
	u64 marks;
	u64 nr_named;
	struct named named[];
};

static volatile struct file *file;
static u64 room;		/* for named counts */
static struct registers registers[MAX_CPUS];
static u32 nr_cpus;
static u64 zeroed_bytes;	/* by DC ZVA */
static bool marked;		/* so TLBs are simulated */

void *tlb_memory(u64 pa, u64 size)
{
	return guest_memory(pa, size);
}

static void cpu_starts(u64 id, unsigned int cpu)
{
	(void)id;
	if (cpu >= MAX_CPUS)
		return;
	find_registers(&registers[cpu]);
	if (cpu >= nr_cpus)
		nr_cpus = cpu + 1;
	if (cpu)
		return;
	zeroed_bytes = zeroed_at_once(&registers[cpu]);
	if (!find_memory())
		fprintf(stderr, "tlb: no memory-backend-memfd\n");
}

/* Counts */

static void name(u64 value, const char *prefix, const char *a, const char *b,
		 const char *c)
{
	volatile struct named *named = &file->named[file->nr_named];

	if (file->nr_named == room)
		return;
	snprintf((char *)named->name, sizeof(named->name), "%s%s%s%s%s%s",
		 prefix, a, *b ? " " : "", b, *c ? " " : "", c);
	named->value = value;
	file->nr_named++;
}

static void name_counts(const char *prefix, const struct counts *counts)
{
	u32 geometry, class, event;

	name(counts->instructions[0], prefix, "kernel", "instructions", "");
	name(counts->instructions[1], prefix, "user", "instructions", "");
	name(counts->unknown, prefix, "not translated", "", "");
	for (class = 0; class < tlb_classes(); class++)
		name(counts->accesses[class], prefix, "accesses",
		     tlb_class_name(class), "");
	for (geometry = 0; geometry < tlb_geometries(); geometry++)
		for (class = 0; class < tlb_classes(); class++)
			for (event = 0; event < NR_EVENTS; event++)
				name(counts->events[geometry][class][event],
				     prefix, tlb_geometry_of(geometry)->name,
				     tlb_class_name(class), event_names[event]);
}

/* Of each CPU, if there are several. */
static void publish(unsigned int cpu, void *data)
{
	char prefix[16];
	u32 i;

	(void)cpu;
	(void)data;
	marked = true;
	file->kernel = 0;
	file->user = 0;
	file->nr_named = 0;
	for (i = 0; i < nr_cpus; i++) {
		const struct counts *counts = tlb_counts(i);

		file->kernel += counts->instructions[0];
		file->user += counts->instructions[1];
		snprintf(prefix, sizeof(prefix), "cpu%u ", i);
		name_counts(nr_cpus > 1 ? prefix : "", counts);
	}
	file->marks++;
}

/* Instructions */

/* What an instruction is, and where: made once for each that is translated. */
struct place {
	u64 pc;
	u64 offset;		/* in its block */
	u32 code;
	u32 instructions;	/* from here on in this page and block */
	bool kernel;
};

static void executes_kernel(unsigned int cpu, void *data)
{
	const struct place *it = data;

	if (cpu < MAX_CPUS && marked)
		tlb_code(cpu, it->pc, true, it->instructions);
}

/*
 * A block is translated once, and executed wherever programs have the same page
 * mapped.  What QEMU has in PC meanwhile is where the block begins.
 */
static void executes_user(unsigned int cpu, void *data)
{
	const struct place *it = data;

	if (cpu < MAX_CPUS && marked)
		tlb_code(cpu, read_register(registers[cpu].pc) + it->offset,
			 false, it->instructions);
}

static void accesses_kernel(unsigned int cpu, u32 info, u64 va, void *data)
{
	(void)info;
	(void)data;
	if (cpu < MAX_CPUS && marked)
		tlb_data(cpu, va, true);
}

static void accesses_user(unsigned int cpu, u32 info, u64 va, void *data)
{
	(void)info;
	(void)data;
	if (cpu < MAX_CPUS && marked)
		tlb_data(cpu, va, false);
}

/* Zeroes a block of memory, of which there is no callback. */
static void zeroes(unsigned int cpu, void *data)
{
	const struct place *it = data;
	u64 va;

	if (cpu >= MAX_CPUS || !marked)
		return;
	va = read_x(&registers[cpu], RT(it->code)) & ~(zeroed_bytes - 1);
	tlb_data(cpu, va, it->kernel);
}

static void maintains(unsigned int cpu, void *data)
{
	const struct place *it = data;
	u64 value;

	if (cpu >= MAX_CPUS)
		return;
	value = read_x(&registers[cpu], RT(it->code));
	if (is_tlbi(it->code) && marked) {
		tlb_tlbi(cpu, it->code, value);
		return;
	}
	switch (it->code & ~31u) {
	case CODE_TTBR0:
		tlb_ttbr0(cpu, value);
		break;
	case CODE_TTBR1:
		tlb_ttbr1(cpu, value);
		break;
	case CODE_TCR:
		tlb_tcr(cpu, value);
		break;
	case CODE_SCTLR:
		if (!(value & 1))
			tlb_off(cpu);
		break;
	}
}

static on_execution callback_of(u32 code)
{
	if (code == MARK)
		return publish;
	if (is_tlbi(code))
		return maintains;
	switch (code & ~31u) {
	case CODE_TTBR0:
	case CODE_TTBR1:
	case CODE_TCR:
	case CODE_SCTLR:
		return maintains;
	case CODE_DC_ZVA:
		return zeroes;
	default:
		return NULL;
	}
}

static struct place *new_place(u64 pc, u32 code, bool kernel)
{
	struct place *place = calloc(1, sizeof(*place));

	place->pc = pc;
	place->code = code;
	place->kernel = kernel;
	return place;
}

static void translated(u64 id, struct block *block)
{
	size_t total = qemu_plugin_tb_n_insns(block), i;
	/* Blocks are translated for one exception level each. */
	bool kernel = exception_level(&registers[0]);
	struct place *page = NULL;

	(void)id;
	for (i = 0; i < total; i++) {
		struct instruction *insn = qemu_plugin_tb_get_insn(block, i);
		u64 pc = qemu_plugin_insn_vaddr(insn);
		on_execution callback;
		u32 code = 0;

		qemu_plugin_insn_data(insn, &code, sizeof(code));
		if (!page || page->pc / SMALLEST_PAGE != pc / SMALLEST_PAGE) {
			page = new_place(pc, code, kernel);
			page->offset = pc - qemu_plugin_tb_vaddr(block);
			qemu_plugin_register_vcpu_insn_exec_cb(insn,
							       kernel ?
							       executes_kernel :
							       executes_user,
							       kernel ?
							       NO_REGISTERS :
							       REGISTERS, page);
		}
		page->instructions++;
		callback = callback_of(code);
		if (callback)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, callback,
							       REGISTERS,
				new_place(pc, code, kernel));
		else if (accesses_memory(code))
			qemu_plugin_register_vcpu_mem_cb(insn, kernel ?
							 accesses_kernel :
							 accesses_user,
							 NO_REGISTERS,
							 LOADS_STORES, NULL);
	}
}

/* Have each line of a file taken. */
static bool read_lines(const char *path, bool (*take)(const char *line))
{
	FILE *lines = fopen(path, "r");
	bool right = lines;
	char line[512];

	while (right && fgets(line, sizeof(line), lines))
		right = take(line);
	if (lines)
		fclose(lines);
	return right;
}

static bool map_counts(const char *path)
{
	int opened = open(path, O_RDWR);
	off_t size = lseek(opened, 0, SEEK_END);

	if (opened < 0 || size < (off_t)sizeof(*file))
		return false;
	file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
	close(opened);
	room = (size - sizeof(*file)) / sizeof(struct named);
	return file != MAP_FAILED;
}

int qemu_plugin_install(u64 id, const struct info *info, int count,
			char *arguments[])
{
	bool right = true;
	int i;

	(void)info;
	for (i = 0; i < count && right; i++) {
		if (!strncmp(arguments[i], "geometries=", 11))
			right = read_lines(arguments[i] + 11, tlb_geometry);
		else if (!strncmp(arguments[i], "ranges=", 7))
			right = read_lines(arguments[i] + 7, tlb_range);
		else if (!strncmp(arguments[i], "counts=", 7))
			right = map_counts(arguments[i] + 7);
		else
			right = false;
	}
	if (!right || !file || !tlb_geometries()) {
		fprintf(stderr, "tlb: usage: -plugin "
			"tlb.so,geometries=FILE,counts=FILE[,ranges=FILE]\n");
		return -1;
	}
	qemu_plugin_register_vcpu_init_cb(id, cpu_starts);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
