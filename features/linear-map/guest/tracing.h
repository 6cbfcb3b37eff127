/* SPDX-License-Identifier: GPL-2.0-only */
/* A BPF program that counts the runs of another one, which it is attached to. */
#ifndef TRACING_H
#define TRACING_H

#include <linux/btf.h>
#include <stddef.h>
#include <stdio.h>

#include "program.h"

/* Types by their numbers, which begin with 1 in the order in which they are defined. */
enum { TYPE_INT = 1, TYPE_PROTOTYPE, TYPE_FUNCTION };

/* Load the types of a program that is the function "traced".  A descriptor, or -1 and errno. */
static inline int tracing_load_types(void)
{
	static const struct {
		struct btf_header header;
		struct btf_type integer;
		__u32 bits;
		struct btf_type prototype;
		struct btf_type function;
		char names[12];
	} types = {
		.header = {
			.magic = BTF_MAGIC,
			.version = BTF_VERSION,
			.hdr_len = sizeof(types.header),
			.type_len = offsetof(typeof(types), names) - sizeof(types.header),
			.str_off = offsetof(typeof(types), names) - sizeof(types.header),
			.str_len = sizeof(types.names),
		},
		.integer = { .name_off = 1, .info = BTF_KIND_INT << 24, .size = 4 },
		.bits = 32,
		.prototype = { .info = BTF_KIND_FUNC_PROTO << 24, .type = TYPE_INT },
		.function = {
			.name_off = 5,
			.info = BTF_KIND_FUNC << 24 | BTF_FUNC_STATIC,
			.type = TYPE_PROTOTYPE,
		},
		.names = "\0int\0traced",
	};
	union bpf_attr attr = { 0 };

	attr.btf = (unsigned long)&types;
	attr.btf_size = sizeof(types);
	return program_bpf(BPF_BTF_LOAD, &attr);
}

/* Load a program as program_load() does, but one that others can be attached to. */
static inline int tracing_load_target(int types, int length, int value)
{
	const struct bpf_func_info function = { .insn_off = 0, .type_id = TYPE_FUNCTION };
	union bpf_attr attr = { 0 };

	attr.prog_btf_fd = types;
	attr.func_info_rec_size = sizeof(function);
	attr.func_info = (unsigned long)&function;
	attr.func_info_cnt = 1;
	return program_load_with(&attr, length, value);
}

/* The number that is a map's value; -1 and errno if it cannot be read. */
static inline long tracing_count(int map)
{
	union bpf_attr attr = { 0 };
	__u64 count = 0;
	__u32 key = 0;

	attr.map_fd = map;
	attr.key = (unsigned long)&key;
	attr.value = (unsigned long)&count;
	if (program_bpf(BPF_MAP_LOOKUP_ELEM, &attr))
		return -1;
	return count;
}

/* Load a program that adds one to a map's number whenever the target begins to run. */
static inline int tracing_load(int target, int map)
{
	static const char license[] = "GPL";
	const struct bpf_insn code[] = {
		/* r1 = the number's address, an instruction of two */
		{
			.code = BPF_LD | BPF_DW | BPF_IMM,
			.dst_reg = BPF_REG_1,
			.src_reg = BPF_PSEUDO_MAP_VALUE,
			.imm = map,
		},
		{ 0 },
		/* r2 = 1 */
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_2, .imm = 1 },
		/* the number += r2, atomically */
		{
			.code = BPF_STX | BPF_ATOMIC | BPF_DW,
			.dst_reg = BPF_REG_1,
			.src_reg = BPF_REG_2,
			.imm = BPF_ADD,
		},
		/* return 0 */
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr attr = { 0 };

	attr.prog_type = BPF_PROG_TYPE_TRACING;
	attr.expected_attach_type = BPF_TRACE_FENTRY;
	attr.attach_prog_fd = target;
	attr.attach_btf_id = TYPE_FUNCTION;
	attr.insns = (unsigned long)code;
	attr.insn_cnt = sizeof(code) / sizeof(*code);
	attr.license = (unsigned long)license;
	return program_bpf(BPF_PROG_LOAD, &attr);
}

/* Attach it to its target, until the descriptor that is returned is closed; or -1 and errno. */
static inline int tracing_attach(int program)
{
	union bpf_attr attr = { 0 };

	attr.raw_tracepoint.prog_fd = program;
	return program_bpf(BPF_RAW_TRACEPOINT_OPEN, &attr);
}

/*
 * Where the code is that calls what was attached last; 0 if there is none. What others were
 * attached by, in the tests before, is given back a little later. The kernel lists the newest last.
 */
static inline unsigned long tracing_trampoline(void)
{
	unsigned long address, found = 0;
	char line[256], name[128];
	FILE *file = fopen("/proc/kallsyms", "r");

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx t %127s", &address, name) == 2 &&
		    !strncmp(name, "bpf_trampoline_", strlen("bpf_trampoline_")))
			found = address;
	}
	if (file)
		fclose(file);
	return found;
}

#endif /* TRACING_H */
