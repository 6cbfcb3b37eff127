// SPDX-License-Identifier: GPL-2.0-only
/*
 * A plugin of QEMU that tells the model (model.h) what a guest's kernel does,
 * and writes what is wrong to a file.
 *
 * Code that runs above EL0 is instrumented: its loads and stores, and the
 * instructions that maintain TLBs or load the registers of translation.
 * Memory is looked at directly: the guest's RAM has to be an object
 * memory-backend-memfd, whose mapping is found in /proc/self/maps.
 *
 * Arguments: out=FILE takes the reports.  bbm=LEVEL overrides the level of
 * FEAT_BBM that the CPU's ID register says.  without=BITS leaves rules out.
 *
 * The file has a line of JSON for each place that breaks a rule.  When it does
 * so again, the count in that line is written anew.  Other lines are facts about
 * the kernel: where it is, and that what follows is about another kernel, which
 * this one has started in its place (kexec).
 *
 * Debian has no package with qemu-plugin.h: what is used of it is declared
 * here, as of version 4 of that interface (QEMU 9.2 and later).
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model.h"

#define API_VERSION	4
#define REGISTERS	1	/* QEMU_PLUGIN_CB_R_REGS */
#define LOADS_STORES	3	/* QEMU_PLUGIN_MEM_RW */

struct block;
struct instruction;
struct info;
struct hwaddr;
struct reg;

/* As glib and QEMU lay them out. */
struct array {
	char *data;
	unsigned int len;
};

struct bytes {
	uint8_t *data;
	unsigned int len;
};

struct reg_descriptor {
	struct reg *handle;
	const char *name;
	const char *feature;
};

typedef void (*on_cpu)(u64 id, unsigned int cpu);
typedef void (*on_block)(u64 id, struct block *block);
typedef void (*on_execution)(unsigned int cpu, void *data);
typedef void (*on_memory)(unsigned int cpu, u32 info, u64 va, void *data);

struct bytes *g_byte_array_new(void);
struct bytes *g_byte_array_set_size(struct bytes *bytes, unsigned int len);
void qemu_plugin_register_vcpu_init_cb(u64 id, on_cpu callback);
void qemu_plugin_register_vcpu_tb_trans_cb(u64 id, on_block callback);
void qemu_plugin_register_vcpu_insn_exec_cb(struct instruction *insn,
					    on_execution callback, int flags,
					    void *data);
void qemu_plugin_register_vcpu_mem_cb(struct instruction *insn,
				      on_memory callback, int flags, int what,
				      void *data);
u64 qemu_plugin_tb_vaddr(const struct block *block);
size_t qemu_plugin_tb_n_insns(const struct block *block);
struct instruction *qemu_plugin_tb_get_insn(const struct block *block,
					    size_t index);
u64 qemu_plugin_insn_vaddr(const struct instruction *insn);
size_t qemu_plugin_insn_data(const struct instruction *insn, void *target,
			     size_t size);
bool qemu_plugin_mem_is_store(u32 info);
unsigned int qemu_plugin_mem_size_shift(u32 info);
struct hwaddr *qemu_plugin_get_hwaddr(u32 info, u64 va);
bool qemu_plugin_hwaddr_is_io(const struct hwaddr *address);
u64 qemu_plugin_hwaddr_phys_addr(const struct hwaddr *address);
struct array *qemu_plugin_get_registers(void);
int qemu_plugin_read_register(struct reg *handle, struct bytes *bytes);

/* What QEMU looks up. */
int qemu_plugin_version = API_VERSION;
int qemu_plugin_install(u64 id, const struct info *info, int count,
			char *arguments[]);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int out = -1, wanted_level = -1;
static u32 without;

/* Memory */

/* The virt machine's RAM. */
#define RAM_BASE	0x40000000ULL
#define MAX_PIECES	16

struct piece {
	char *host;
	u64 size, inode;
};

static struct piece pieces[MAX_PIECES];
static u32 nr_pieces;

static int by_inode(const void *a, const void *b)
{
	const struct piece *one = a, *two = b;

	return one->inode < two->inode ? -1 : one->inode > two->inode;
}

/* Backends are made in the order in which their memory is laid out. */
static void find_memory(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	u64 start, end;
	u64 inode;

	while (maps && fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "/memfd:memory-backend-memfd") ||
		    nr_pieces == MAX_PIECES ||
		    sscanf(line, "%" PRIx64 "-%" PRIx64 " %*s %*s %*s %" PRIu64,
			   &start, &end, &inode) != 3)
			continue;
		pieces[nr_pieces++] = (struct piece){
			.host = (char *)start,
			.size = end - start,
			.inode = inode,
		};
	}
	if (maps)
		fclose(maps);
	qsort(pieces, nr_pieces, sizeof(*pieces), by_inode);
	if (!nr_pieces)
		fprintf(stderr, "strict: no memory-backend-memfd\n");
}

void *model_memory(u64 pa, u64 size)
{
	u64 offset = pa - RAM_BASE;
	u32 i;

	for (i = 0; i < nr_pieces && pa >= RAM_BASE; i++) {
		if (offset < pieces[i].size)
			return size <= pieces[i].size - offset ?
			       pieces[i].host + offset : NULL;
		offset -= pieces[i].size;
	}
	return NULL;
}

/* Registers */

#define NR_X	31

struct registers {
	struct reg *x[NR_X];
	struct reg *cpsr;
};

static struct registers registers[MAX_CPUS];
static u64 zeroed_bytes = 64;	/* by DC ZVA */

static u64 read_register(struct reg *handle)
{
	static __thread struct bytes *bytes;
	u64 value = 0;
	int size;

	if (!handle)
		return 0;
	if (!bytes)
		bytes = g_byte_array_new();
	g_byte_array_set_size(bytes, 0);
	size = qemu_plugin_read_register(handle, bytes);
	if (size > 0)
		memcpy(&value, bytes->data, size < 8 ? size : 8);
	return value;
}

static u64 read_x(unsigned int cpu, u32 number)
{
	return number < NR_X ? read_register(registers[cpu].x[number]) : 0;
}

static void cpu_starts(u64 id, unsigned int cpu)
{
	struct array *array = qemu_plugin_get_registers();
	const struct reg_descriptor *all = (void *)array->data;
	int level = wanted_level;
	unsigned int i, number;
	u64 words;
	char rest;

	(void)id;
	if (cpu >= MAX_CPUS)
		return;
	for (i = 0; i < array->len; i++) {
		const char *name = all[i].name;
		struct reg *handle = all[i].handle;

		if (sscanf(name, "x%u%c", &number, &rest) == 1 &&
		    number < NR_X) {
			registers[cpu].x[number] = handle;
		} else if (!strcmp(name, "cpsr")) {
			registers[cpu].cpsr = handle;
		} else if (!strcmp(name, "ID_AA64MMFR2_EL1") && level < 0) {
			level = BITS(read_register(handle), 55, 52);
		} else if (!strcmp(name, "DCZID_EL0")) {
			words = BITS(read_register(handle), 3, 0);
			zeroed_bytes = 4ULL << words;
		}
	}
	if (cpu)
		return;
	find_memory();
	model_start(level, without);
	dprintf(out, "{\"bbm_level\": %d}\n", level);
}

/* Reports */

#define FRAMES		10
#define NR_PLACES	4096

static const char * const names[NR_RULES] = {
	[RULE_BREAK_BEFORE_MAKE]	= "break-before-make",
	[RULE_MAKE_BEFORE_INVALIDATION]	= "make-before-invalidation",
	[RULE_STALE_USE]		= "stale-use",
	[RULE_SCOPE]			= "scope",
	[RULE_SIZES]			= "sizes",
	[RULE_CONTIGUOUS]		= "contiguous",
	[RULE_TABLES]			= "tables",
	[RULE_ACCESS_FLAG]		= "access-flag",
	[RULE_SHARED_TLB]		= "shared-tlb",
	[RULE_WRITE_EXECUTE]		= "write-execute",
};

/* A place that breaks a rule: the rule, the instruction and its callers. */
struct place {
	enum rule rule;
	u64 pc;
	u64 callers[FRAMES];
	u64 count;
	off_t at;		/* of the count in the file */
};

static struct place places[NR_PLACES];
static u32 nr_places;

static u64 *kernel_memory(u32 cpu, u64 va)
{
	u64 desc, size;
	int level;

	/* Before the kernel is at its own addresses. */
	if (!(va >> 63) && va % 8 == 0)
		return model_memory(va, 16);
	if (va % 8 || !walk(model.cpus[cpu].root, va, &desc, &level))
		return NULL;
	size = granule(level);
	return model_memory(desc_address(&model.geometry, desc, level) +
			    (va & (size - 1)), 16);
}

/* Return addresses may be signed: what is not address is made so. */
static u64 with_upper_half(u64 address)
{
	if (!(address >> 55 & 1) || !model.known)
		return address;
	return address | -BIT(model.geometry.va_bits);
}

static void find_callers(u32 cpu, u64 callers[FRAMES])
{
	u64 frame = read_x(cpu, 29), *record;
	u32 i;

	memset(callers, 0, FRAMES * sizeof(*callers));
	callers[0] = with_upper_half(read_x(cpu, 30));
	for (i = 1; i < FRAMES; i++) {
		record = kernel_memory(cpu, frame);
		if (!record || !record[1])
			break;
		callers[i] = with_upper_half(record[1]);
		frame = record[0];
	}
}

static struct place *place_of(const struct report *report)
{
	struct place place = { .rule = report->rule, .pc = report->site.pc };
	u32 i;

	find_callers(report->site.cpu, place.callers);
	for (i = 0; i < nr_places; i++)
		if (places[i].rule == place.rule && places[i].pc == place.pc &&
		    !memcmp(places[i].callers, place.callers,
			    sizeof(place.callers)))
			return &places[i];
	if (nr_places == NR_PLACES)
		return NULL;
	places[nr_places] = place;
	return &places[nr_places++];
}

void model_report(const struct report *report)
{
	struct place *place = place_of(report);
	char text[2048], count[16];
	int length, i;
	off_t end;

	if (!place)
		return;
	place->count++;
	if (place->count > 1) {
		length = snprintf(count, sizeof(count), "%10" PRIu64,
				  place->count);
		if (pwrite(out, count, length, place->at) < 0)
			perror("strict: a count");
		return;
	}
	length = snprintf(text, sizeof(text), "{\"count\": %10d, "
			  "\"rule\": \"%s\", \"words\": \"%s\", \"cpu\": %u, "
			  "\"pc\": %" PRIu64 ", \"address\": %" PRIu64 ", "
			  "\"old\": %" PRIu64 ", \"new\": %" PRIu64 ", "
			  "\"writer_cpu\": %u, \"writer\": %" PRIu64 ", "
			  "\"writer_caller\": %" PRIu64 ", "
			  "\"callers\": [", 1, names[report->rule],
			  report->words, report->site.cpu, report->site.pc,
			  report->address, report->old, report->new,
			  report->writer.cpu, report->writer.pc,
			  with_upper_half(report->writer.caller));
	for (i = 0; i < FRAMES && place->callers[i]; i++)
		length += snprintf(text + length, sizeof(text) - length,
				   "%s%" PRIu64, i ? ", " : "",
				   place->callers[i]);
	length += snprintf(text + length, sizeof(text) - length, "]}\n");
	end = lseek(out, 0, SEEK_END);
	place->at = end + strlen("{\"count\": ");
	if (write(out, text, length) < 0)
		perror("strict: a report");
}

/* Instructions */

#define CODE_TTBR1	0xd5182020u	/* MSR, without the register */
#define CODE_TCR	0xd5182040u
#define CODE_MAIR	0xd518a200u
#define CODE_SCTLR	0xd5181000u
#define CODE_VBAR	0xd518c000u
#define CODE_HVC	0xd4000002u	/* without a number: calls PSCI */
#define CODE_SMC	0xd4000003u
#define CODE_DC_ZVA	0xd50b7420u
#define PSCI_CPU_OFF	0x84000002u
#define RT(code)	((code) & 31)

/* What an instruction is, and where: made once for each that is translated. */
struct place_of_code {
	u64 pc;
	u32 code;
};

/* Which facts about the kernel that runs now have been written. */
static bool image_said, vectors_said;

static void say(const char *what, u64 value)
{
	lseek(out, 0, SEEK_END);
	dprintf(out, "{\"%s\": %" PRIu64 "}\n", what, value);
}

/* Is there a CPU with translation on?  If not, a kernel is about to start another. */
static bool kernel_runs(void)
{
	u32 i;

	for (i = 0; i < MAX_CPUS; i++)
		if (model.cpus[i].root >= 0)
			return true;
	return false;
}

/* What was said and what was reported so far is about a kernel that has ended. */
static void another_kernel(void)
{
	static u64 nr;

	say("kernel", ++nr);
	image_said = false;
	vectors_said = false;
	nr_places = 0;
}

static bool calls_firmware(u32 code)
{
	return code == CODE_HVC || code == CODE_SMC;
}

static void executes(unsigned int cpu, void *data)
{
	const struct place_of_code *it = data;
	struct site site = { .cpu = cpu, .pc = it->pc };
	u64 value;

	if (cpu >= MAX_CPUS)
		return;
	if (is_dsb(it->code)) {
		pthread_mutex_lock(&lock);
		model_dsb(site, it->code);
		pthread_mutex_unlock(&lock);
		return;
	}
	value = read_x(cpu, calls_firmware(it->code) ? 0 : RT(it->code));
	pthread_mutex_lock(&lock);
	if (calls_firmware(it->code)) {
		if ((u32)value == PSCI_CPU_OFF)
			model_power_off(site);
	} else if (is_tlbi(it->code)) {
		model_tlbi(site, it->code, value);
	} else {
		switch (it->code & ~31u) {
		case CODE_TTBR1:
			model_root(site, value);
			break;
		case CODE_TCR:
			model_tcr(value);
			break;
		case CODE_MAIR:
			model_mair(value);
			break;
		case CODE_SCTLR:
			if (!(value & 1))
				model_off(site);
			if (!(value & 1) && !kernel_runs() && vectors_said)
				another_kernel();
			break;
		case CODE_VBAR:
			if (!vectors_said && value >> 63) {
				say("vectors", value);
				vectors_said = true;
			}
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

/*
 * Zeroes a block of memory, of which there is no callback.  It comes before
 * the instruction, so the memory is zeroed here already.
 */
static void zeroes(unsigned int cpu, void *data)
{
	const struct place_of_code *it = data;
	u64 va, desc, pa, size = zeroed_bytes;
	u64 *memory;
	int level;

	if (cpu >= MAX_CPUS)
		return;
	va = read_x(cpu, RT(it->code)) & ~(size - 1);
	/* Most pages are none: so that is found out without the lock. */
	if (!walk(model.cpus[cpu].root, va, &desc, &level))
		return;
	pa = desc_address(&model.geometry, desc, level) +
	     (va & (granule(level) - 1));
	memory = model_memory(pa, size);
	if (!memory || !is_table_page(pa))
		return;
	memset(memory, 0, size);
	pthread_mutex_lock(&lock);
	model_store((struct site){ .cpu = cpu, .pc = it->pc }, pa, size, false);
	pthread_mutex_unlock(&lock);
}

/* The lowest bit of an instruction's address says that it is atomic. */
static void accesses(unsigned int cpu, u32 info, u64 va, void *data)
{
	u64 pc = (uintptr_t)data & ~1ULL;
	struct site site = { .cpu = cpu, .pc = pc };
	u64 size = 1ULL << qemu_plugin_mem_size_shift(info);
	bool store = qemu_plugin_mem_is_store(info);
	struct hwaddr *address;
	u64 pa;

	if (cpu >= MAX_CPUS)
		return;
	if (store) {
		address = qemu_plugin_get_hwaddr(info, va);
		pa = address ? qemu_plugin_hwaddr_phys_addr(address) : 0;
		if (is_table_page(pa)) {
			site.caller = read_x(cpu, 30);
			pthread_mutex_lock(&lock);
			model_store(site, pa, size, (uintptr_t)data & 1);
			pthread_mutex_unlock(&lock);
		}
	}
	if (va >> 63 && address_has_records(va)) {
		pthread_mutex_lock(&lock);
		model_access(site, va, size, store);
		pthread_mutex_unlock(&lock);
	}
}

/* Loads and stores, all of them, by their place in the encoding of A64. */
static bool accesses_memory(u32 code)
{
	return (code & 0x0a000000) == 0x08000000;
}

/* Store-exclusives and CAS; and SWP, LDADD and so on. */
static bool is_atomic(u32 code)
{
	return (code & 0x3f000000) == 0x08000000 ||
	       (code & 0x3b200c00) == 0x38200000;
}

/* The kernel's first instruction is the first of its image. */
#define IMAGE_ALIGN	0x10000

static bool is_special(u32 code)
{
	switch (code & ~31u) {
	case CODE_TTBR1:
	case CODE_TCR:
	case CODE_MAIR:
	case CODE_SCTLR:
	case CODE_VBAR:
		return true;
	default:
		return is_tlbi(code) || is_dsb(code) || calls_firmware(code);
	}
}

static void translated(u64 id, struct block *block)
{
	size_t total = qemu_plugin_tb_n_insns(block), i;
	/* Blocks are translated for one exception level each. */
	u64 pstate = read_register(registers[0].cpsr);

	(void)id;
	if (!BITS(pstate, 3, 2))
		return;
	if (!image_said && qemu_plugin_tb_vaddr(block) > RAM_BASE &&
	    qemu_plugin_tb_vaddr(block) % IMAGE_ALIGN == 0) {
		image_said = true;
		say("image", qemu_plugin_tb_vaddr(block));
	}
	for (i = 0; i < total; i++) {
		struct instruction *insn = qemu_plugin_tb_get_insn(block, i);
		u64 pc = qemu_plugin_insn_vaddr(insn);
		struct place_of_code *it;
		u32 code = 0;

		qemu_plugin_insn_data(insn, &code, sizeof(code));
		if (accesses_memory(code)) {
			pc |= is_atomic(code);
			qemu_plugin_register_vcpu_mem_cb(insn, accesses,
							 REGISTERS,
							 LOADS_STORES,
							 (void *)pc);
			continue;
		}
		if (!is_special(code) && (code & ~31u) != CODE_DC_ZVA)
			continue;
		it = malloc(sizeof(*it));
		it->pc = pc;
		it->code = code;
		qemu_plugin_register_vcpu_insn_exec_cb(insn, is_special(code) ?
						       executes : zeroes,
						       REGISTERS, it);
	}
}

int qemu_plugin_install(u64 id, const struct info *info, int count,
			char *arguments[])
{
	int i;

	(void)info;
	for (i = 0; i < count; i++) {
		if (!strncmp(arguments[i], "out=", 4))
			out = open(arguments[i] + 4, O_RDWR | O_CREAT | O_TRUNC,
				   0644);
		else if (sscanf(arguments[i], "bbm=%d", &wanted_level) != 1 &&
			 sscanf(arguments[i], "without=%u", &without) != 1)
			break;
	}
	if (i < count || out < 0) {
		fprintf(stderr, "strict: usage: -plugin "
			"strict.so,out=FILE[,bbm=LEVEL][,without=BITS]\n");
		return -1;
	}
	qemu_plugin_register_vcpu_init_cb(id, cpu_starts);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
