// SPDX-License-Identifier: GPL-2.0-only
/*
 * A plugin of QEMU that counts the instructions a guest executes, those at
 * kernel addresses and those at user addresses apart, of all its processors.
 *
 * QEMU calls qemu_plugin_install() once, and translated() for each block of
 * code before it runs for the first time.  A block ends early if an access to
 * memory faults, so what is counted at a time is a run of instructions up to
 * the next access.  All processors take turns in one thread (-icount): QEMU's
 * own counters per processor are broken there (10.0 takes the number of the
 * processor that the block was translated for, and multiplies it in place).
 *
 * When the guest executes MARK, an instruction that does nothing, the counts
 * up to there are written to the file that the argument counts= names.  QEMU
 * gives the guest the same file as a device (ivshmem-plain); a guest program
 * that maps the device reads them.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/qemu.h"

#define MARK		0xd5032fffu	/* hint #127 */

/* What the guest reads. */
struct counts {
	uint64_t kernel;
	uint64_t user;
	uint64_t marks;
};

static uint64_t kernel, user;
static volatile struct counts *counts;

static void publish(unsigned int cpu, void *data)
{
	(void)cpu;
	(void)data;
	counts->kernel = kernel;
	counts->user = user;
	counts->marks++;
}

static void add_kernel(unsigned int cpu, void *length)
{
	(void)cpu;
	kernel += (uintptr_t)length;
}

static void add_user(unsigned int cpu, void *length)
{
	(void)cpu;
	user += (uintptr_t)length;
}

static void translated(uint64_t id, struct block *block)
{
	size_t total = qemu_plugin_tb_n_insns(block), first, next;

	(void)id;
	for (first = 0; first < total; first = next) {
		struct instruction *insn = qemu_plugin_tb_get_insn(block, first);
		/* Kernel addresses are the upper half. */
		int upper = qemu_plugin_insn_vaddr(insn) >> 63;
		uint32_t code = 0;

		for (next = first; next < total && !accesses_memory(code); next++) {
			struct instruction *member = qemu_plugin_tb_get_insn(block, next);

			qemu_plugin_insn_data(member, &code, sizeof(code));
			if (code == MARK)
				qemu_plugin_register_vcpu_insn_exec_cb(member, publish,
								       NO_REGISTERS, NULL);
		}
		qemu_plugin_register_vcpu_insn_exec_cb(insn, upper ? add_kernel : add_user,
						       NO_REGISTERS,
						       (void *)(uintptr_t)(next - first));
	}
}

int qemu_plugin_install(uint64_t id, const struct info *info, int count, char *arguments[])
{
	int file;

	(void)info;
	if (count != 1 || strncmp(arguments[0], "counts=", 7)) {
		fprintf(stderr, "counter: usage: -plugin counter.so,counts=FILE\n");
		return -1;
	}
	file = open(arguments[0] + 7, O_RDWR);
	if (file < 0) {
		perror(arguments[0] + 7);
		return -1;
	}
	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (counts == MAP_FAILED) {
		perror(arguments[0] + 7);
		return -1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
