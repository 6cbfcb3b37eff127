// SPDX-License-Identifier: GPL-2.0-only
/*
 * Read each CPU's copy of a per-CPU variable as a debugger does: from /proc/kcore,
 * at the address that /proc/kallsyms and __per_cpu_offset say.
 *
 * The variable is ksoftirqd, a pointer to the task of that CPU, whose name says for
 * which one it is. Prints lines NAME=VALUE, with numbers in hexadecimal:
 *
 *	cpuN, addressN		the name of the task that CPU N's copy points at, and
 *				where that copy is
 *	start, size, physical	the segment that the last of them is in
 *	last			the segment's last eight bytes
 *	read			so many bytes can be read from the last CPU's copy on,
 *				of 4 MiB that are not all mapped
 *	NUMBER(PERCPU_...)	as VMCOREINFO has it
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "process.h"
#include "symbols.h"

#define LONG	(4 << 20)
/* More than a task_struct before its name. */
#define TASK	16384

static uint64_t address_of(const char *symbol)
{
	unsigned long address;

	errno = symbol_find(symbol, &address);
	if (errno == ENXIO) {
		fprintf(stderr, "there is no symbol %s\n", symbol);
		exit(EXIT_FAILURE);
	}
	if (errno)
		die("/proc/kallsyms");
	return address;
}

/* /proc/kcore and its program headers. */
struct core {
	int fd;
	unsigned int nr;
	Elf64_Phdr *segments;
};

static void read_all(int fd, void *to, size_t size, off_t offset)
{
	ssize_t got = pread(fd, to, size, offset);

	if (got >= 0 && (size_t)got != size)
		errno = EIO;
	if ((size_t)got != size)
		die("/proc/kcore");
}

static struct core open_core(void)
{
	struct core core = { .fd = open("/proc/kcore", O_RDONLY | O_CLOEXEC) };
	Elf64_Ehdr header;

	if (core.fd < 0)
		die("/proc/kcore");
	read_all(core.fd, &header, sizeof(header), 0);
	core.nr = header.e_phnum;
	core.segments = calloc(core.nr, sizeof(*core.segments));
	if (!core.segments)
		die("memory");
	read_all(core.fd, core.segments, core.nr * sizeof(*core.segments), header.e_phoff);
	return core;
}

static const Elf64_Phdr *segment_of(const struct core *core, uint64_t address)
{
	unsigned int i;

	for (i = 0; i < core->nr; i++) {
		const Elf64_Phdr *segment = &core->segments[i];

		if (segment->p_type == PT_LOAD && address >= segment->p_vaddr &&
		    address - segment->p_vaddr < segment->p_memsz)
			return segment;
	}
	fprintf(stderr, "no segment has %" PRIx64 "\n", address);
	exit(EXIT_FAILURE);
}

static off_t offset_of(const struct core *core, uint64_t address)
{
	const Elf64_Phdr *segment = segment_of(core, address);

	return segment->p_offset + (address - segment->p_vaddr);
}

/* VMCOREINFO is the text in one of the notes. */
static void print_vmcoreinfo(const struct core *core)
{
	unsigned int i;

	for (i = 0; i < core->nr; i++) {
		const Elf64_Phdr *segment = &core->segments[i];
		char *notes, *line;

		if (segment->p_type != PT_NOTE)
			continue;
		notes = malloc(segment->p_filesz);
		if (!notes)
			die("memory");
		read_all(core->fd, notes, segment->p_filesz, segment->p_offset);
		line = memmem(notes, segment->p_filesz, "OSRELEASE=", 10);
		if (!line) {
			fprintf(stderr, "/proc/kcore has no VMCOREINFO\n");
			exit(EXIT_FAILURE);
		}
		for (line = strtok(line, "\n"); line; line = strtok(NULL, "\n")) {
			if (!strncmp(line, "NUMBER(PERCPU_", 14))
				puts(line);
		}
		free(notes);
	}
}

/* What a task is called that is somewhere in the linear map. */
static const char *name_of(const struct core *core, uint64_t task)
{
	static char struct_and_more[TASK + 1];
	const Elf64_Phdr *segment;
	uint64_t left;
	char *name;

	/* Memory tags are not in addresses of segments. */
	task |= 0xffULL << 56;
	segment = segment_of(core, task);
	left = segment->p_vaddr + segment->p_memsz - task;
	if (left > TASK)
		left = TASK;
	read_all(core->fd, struct_and_more, left, offset_of(core, task));
	struct_and_more[left] = '\0';
	name = memmem(struct_and_more, left, "ksoftirqd/", 10);
	return name ?: "nobody";
}

int main(void)
{
	uint64_t variable = address_of("ksoftirqd"), offsets = address_of("__per_cpu_offset");
	long cpu, cpus = sysconf(_SC_NPROCESSORS_CONF);
	struct core core = open_core();
	char *buffer = malloc(LONG);
	const Elf64_Phdr *segment;
	uint64_t address = 0, last;

	if (!buffer)
		die("memory");
	for (cpu = 0; cpu < cpus; cpu++) {
		uint64_t offset, task;

		read_all(core.fd, &offset, sizeof(offset),
			 offset_of(&core, offsets + cpu * sizeof(offset)));
		address = variable + offset;
		printf("address%ld=%" PRIx64 "\n", cpu, address);
		read_all(core.fd, &task, sizeof(task), offset_of(&core, address));
		printf("cpu%ld=%s\n", cpu, task ? name_of(&core, task) : "none");
	}

	segment = segment_of(&core, address);
	read_all(core.fd, &last, sizeof(last),
		 segment->p_offset + segment->p_memsz - sizeof(last));
	printf("start=%" PRIx64 "\nsize=%" PRIx64 "\nphysical=%" PRIx64 "\nlast=%" PRIx64 "\n",
	       (uint64_t)segment->p_vaddr, (uint64_t)segment->p_memsz,
	       (uint64_t)segment->p_paddr, last);
	printf("read=%zx\n", (size_t)pread(core.fd, buffer, LONG, offset_of(&core, address)));
	print_vmcoreinfo(&core);
	return EXIT_SUCCESS;
}
