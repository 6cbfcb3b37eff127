/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Physical memory as root sees it: through the linear map (/proc/kcore), or in a
 * crash dump (/proc/vmcore).  Both are ELF files with physical addresses.
 */
#ifndef PHYSICAL_H
#define PHYSICAL_H

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The physical address of a page of this process; 0 if it has none. */
static inline unsigned long physical_address(const void *p)
{
	unsigned long entry = 0, page_size = sysconf(_SC_PAGESIZE);
	unsigned long address = (unsigned long)p;
	int fd;

	fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (pread(fd, &entry, sizeof(entry), address / page_size * sizeof(entry)) !=
	    sizeof(entry))
		entry = 0;
	close(fd);
	/* Bit 63: present; bits 0 to 54: the frame number. */
	if (!(entry >> 63))
		return 0;
	return (entry & ((1UL << 55) - 1)) * page_size + address % page_size;
}

/*
 * Find the segment that holds a physical address.  The kernel's own text is in
 * two: the one at the lower virtual address is the linear map's.
 */
static inline int physical_segment(int fd, unsigned long address, Elf64_Phdr *segment)
{
	Elf64_Ehdr header;
	Elf64_Phdr found;
	int i;

	memset(segment, 0, sizeof(*segment));
	if (pread(fd, &header, sizeof(header), 0) != sizeof(header))
		return -1;
	for (i = 0; i < header.e_phnum; i++) {
		if (pread(fd, &found, sizeof(found),
			  header.e_phoff + i * sizeof(found)) != sizeof(found))
			return -1;
		if (found.p_type == PT_LOAD && found.p_paddr != ~0UL &&
		    address >= found.p_paddr && address - found.p_paddr < found.p_memsz &&
		    (!segment->p_memsz || found.p_vaddr < segment->p_vaddr))
			*segment = found;
	}
	if (segment->p_memsz)
		return 0;
	errno = ENXIO;
	return -1;
}

/* Read physical memory from /proc/kcore or /proc/vmcore. */
static inline int physical_read(const char *path, unsigned long address, void *buffer, size_t size)
{
	Elf64_Phdr segment;
	ssize_t got = -1;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (!physical_segment(fd, address, &segment))
		got = pread(fd, buffer, size, segment.p_offset + address - segment.p_paddr);
	close(fd);
	return got == (ssize_t)size ? 0 : -1;
}

/* The address of physical memory in the linear map; 0 if there is none. */
static inline unsigned long linear_address(unsigned long address)
{
	Elf64_Phdr segment;
	unsigned long linear = 0;
	int fd;

	fd = open("/proc/kcore", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (!physical_segment(fd, address, &segment))
		linear = segment.p_vaddr + address - segment.p_paddr;
	close(fd);
	return linear;
}

#endif /* PHYSICAL_H */
