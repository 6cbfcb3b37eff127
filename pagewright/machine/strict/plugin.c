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
 * so again, the count in that line is written anew.  Other lines are facts
 * about the kernel: where it is, and that what follows is about another kernel,
 * which this one has started in its place (kexec).  That something was not seen
 * is a line, too: without it a file with no report would say that all is well.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../shared/qemu.h"
#include "model.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int out = -1, wanted_level = -1;
static u32 without;

void *model_memory(u64 pa, u64 size)
{
	return guest_memory(pa, size);
}

static struct registers registers[MAX_CPUS];
static u64 zeroed_bytes;	/* by DC ZVA */

static void cpu_starts(u64 id, unsigned int cpu)
{
	int level = wanted_level;

	(void)id;
	if (cpu >= MAX_CPUS)
		return;
	find_registers(&registers[cpu]);
	if (cpu)
		return;
	if (level < 0)
		level = BITS(read_register(registers[cpu].mmfr2), 55, 52);
	zeroed_bytes = zeroed_at_once(&registers[cpu]);
	if (!find_memory())
		model_blind("the memory is no memory-backend-memfd");
	model_start(level, without);
	dprintf(out, "{\"bbm_level\": %d}\n", level);
}

/* Reports */

#define FRAMES		10
#define NR_PLACES	4096
#define NR_REASONS	4

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

/* Nothing can be said any more, not even that. */
static void give_up(const char *what)
{
	perror(what);
	abort();
}

void model_blind(const char *why)
{
	static const char *said[NR_REASONS];
	u32 i;

	for (i = 0; i < NR_REASONS && said[i]; i++)
		if (said[i] == why)
			return;
	if (i < NR_REASONS)
		said[i] = why;
	lseek(out, 0, SEEK_END);
	if (dprintf(out, "{\"blind\": \"%s\"}\n", why) < 0)
		give_up("strict: that something was not seen");
}

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
	u64 frame = read_x(&registers[cpu], 29), *record;
	u32 i;

	memset(callers, 0, FRAMES * sizeof(*callers));
	callers[0] = with_upper_half(read_x(&registers[cpu], 30));
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
	if (nr_places == NR_PLACES) {
		model_blind("there are reports from too many places");
		return NULL;
	}
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
			give_up("strict: a count");
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
	if (write(out, text, length) != length)
		give_up("strict: a report");
}

/* Instructions */

/* HVC and SMC without a number, by which PSCI is called. */
#define CODE_HVC	0xd4000002u
#define CODE_SMC	0xd4000003u
#define PSCI_CPU_OFF	0x84000002u

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

/* Is translation on in any CPU?  If not, a kernel is about to start another. */
static bool kernel_runs(void)
{
	u32 i;

	for (i = 0; i < MAX_CPUS; i++)
		if (model.cpus[i].root >= 0)
			return true;
	return false;
}

/*
 * The kernel runs where its vectors are.  If the tables do not map them, what is
 * looked at is not the memory that the tables are in.
 */
static void look_for_vectors(u32 cpu, u64 va)
{
	u64 desc;
	int level;

	if (!walk(model.cpus[cpu].root, va, &desc, &level))
		model_blind("the tables do not map the kernel");
}

/* What was said and reported so far is about a kernel that has ended. */
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
	value = read_x(&registers[cpu],
		       calls_firmware(it->code) ? 0 : RT(it->code));
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
			if (value & 1)
				break;
			model_off(site);
			if (!kernel_runs() && vectors_said)
				another_kernel();
			break;
		case CODE_VBAR:
			if (!vectors_said && value >> 63) {
				say("vectors", value);
				vectors_said = true;
				look_for_vectors(site.cpu, value);
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
	va = read_x(&registers[cpu], RT(it->code)) & ~(size - 1);
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
			site.caller = read_x(&registers[cpu], 30);
			pthread_mutex_lock(&lock);
			model_store(site, pa, size, (uintptr_t)data & 1);
			pthread_mutex_unlock(&lock);
		}
	}
	/* A tag in the top byte of a kernel address is not translated. */
	if (va >> 55 & 1)
		va |= 0xffULL << 56;
	if (va >> 63 && access_has_records(va, size)) {
		pthread_mutex_lock(&lock);
		model_access(site, va, size, store);
		pthread_mutex_unlock(&lock);
	}
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

	(void)id;
	/* Blocks are translated for one exception level each. */
	if (!exception_level(&registers[0]))
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
