/* SPDX-License-Identifier: GPL-2.0-only */
/* BPF programs of any length that return what they are told to. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <linux/bpf.h>
#include <sys/syscall.h>
#include <unistd.h>

/* In instructions. */
#define PROGRAM_SHORTEST	2
#define PROGRAM_LONGEST	4000

static inline int program_bpf(int command, union bpf_attr *attr)
{
	return syscall(__NR_bpf, command, attr, sizeof(*attr));
}

/*
 * Load a program of so many instructions: the last two return the value, the
 * others do nothing.  The attributes say what else it has, such as types.
 * A descriptor, or -1 and errno.
 */
static inline int program_load_with(union bpf_attr *attr, int length, int value)
{
	static __thread struct bpf_insn code[PROGRAM_LONGEST];
	static const char license[] = "GPL";
	int i;

	for (i = 0; i < length; i++) {
		/* r0 = value */
		code[i] = (struct bpf_insn){ .code = BPF_ALU64 | BPF_MOV | BPF_K, .imm = value };
	}
	code[length - 1] = (struct bpf_insn){ .code = BPF_JMP | BPF_EXIT };
	attr->prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
	attr->insns = (unsigned long)code;
	attr->insn_cnt = length;
	attr->license = (unsigned long)license;
	return program_bpf(BPF_PROG_LOAD, attr);
}

/* Load such a program that has nothing else.  A descriptor, or -1 and errno. */
static inline int program_load(int length, int value)
{
	union bpf_attr attr = { 0 };

	return program_load_with(&attr, length, value);
}

/* Run a program once; what it returned, or -1 and errno. */
static inline int program_run(int fd)
{
	char packet[64] = { 0 };
	union bpf_attr attr = { 0 };

	attr.test.prog_fd = fd;
	attr.test.data_in = (unsigned long)packet;
	attr.test.data_size_in = sizeof(packet);
	attr.test.repeat = 1;
	if (program_bpf(BPF_PROG_TEST_RUN, &attr))
		return -1;
	return attr.test.retval;
}

/* What the kernel tells of a program; all zero if it tells nothing. */
static inline struct bpf_prog_info program_info(int fd, struct bpf_prog_info asked)
{
	union bpf_attr attr = { 0 };

	attr.info.bpf_fd = fd;
	attr.info.info_len = sizeof(asked);
	attr.info.info = (unsigned long)&asked;
	if (program_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr))
		return (struct bpf_prog_info){ 0 };
	return asked;
}

/* How long the machine code of a program is; 0 if it is interpreted. */
static inline int program_machine_code(int fd)
{
	return program_info(fd, (struct bpf_prog_info){ 0 }).jited_prog_len;
}

/* Where the machine code of a program is; 0 if the kernel does not tell. */
static inline unsigned long program_address(int fd)
{
	__u64 address = 0;

	program_info(fd, (struct bpf_prog_info){
		.nr_jited_ksyms = 1,
		.jited_ksyms = (unsigned long)&address,
	});
	return address;
}

/* Create a map of one value of so many bytes, all zero.  A descriptor, or -1 and errno. */
static inline int program_new_map(unsigned int bytes)
{
	union bpf_attr attr = { 0 };

	attr.map_type = BPF_MAP_TYPE_ARRAY;
	attr.key_size = sizeof(__u32);
	attr.value_size = bytes;
	attr.max_entries = 1;
	return program_bpf(BPF_MAP_CREATE, &attr);
}

#endif /* PROGRAM_H */
