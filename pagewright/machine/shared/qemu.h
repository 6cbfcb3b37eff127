/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What plugins use of QEMU, and what they know of its guest: registers, and
 * memory.
 *
 * Debian has no package with qemu-plugin.h: what is used of it is declared
 * here, as of version 4 of that interface (QEMU 9.2 and later).
 */
#ifndef SHARED_QEMU_H
#define SHARED_QEMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;
typedef uint32_t u32;

#define API_VERSION	4
#define NO_REGISTERS	0	/* QEMU_PLUGIN_CB_NO_REGS */
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
int qemu_plugin_install(u64 id, const struct info *info, int count,
			char *arguments[]);

/* The virt machine's RAM. */
#define RAM_BASE	0x40000000ULL

/* The registers of a CPU that plugins read, and those that say what it is. */
#define NR_X	31

struct registers {
	struct reg *x[NR_X];
	struct reg *pc;
	struct reg *cpsr;
	struct reg *mmfr2;
	struct reg *dczid;
};

/* Instructions, without the register that is loaded. */
#define CODE_TTBR0	0xd5182000u
#define CODE_TTBR1	0xd5182020u
#define CODE_TCR	0xd5182040u
#define CODE_MAIR	0xd518a200u
#define CODE_SCTLR	0xd5181000u
#define CODE_VBAR	0xd518c000u
#define CODE_DC_ZVA	0xd50b7420u
#define RT(code)	((code) & 31)

void find_registers(struct registers *registers);
u64 read_register(struct reg *handle);
u64 read_x(const struct registers *registers, u32 number);
u32 exception_level(const struct registers *registers);
u64 zeroed_at_once(const struct registers *registers);
bool accesses_memory(u32 code);
bool find_memory(void);
void *guest_memory(u64 pa, u64 size);

#endif
