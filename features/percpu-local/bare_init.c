// SPDX-License-Identifier: GPL-2.0-only
/*
 * The first process of a kernel that has nothing but an initramfs. It says that it runs, and
 * switches the machine off. An argument is a crash that LKDTM is to cause first.
 *
 * It has no C library, because there is none for big-endian kernels.
 */
#include <linux/reboot.h>
#include <sys/syscall.h>

static long syscall5(long nr, long a, long b, long c, long d, long e)
{
	register long x8 asm("x8") = nr;
	register long x0 asm("x0") = a;
	register long x1 asm("x1") = b;
	register long x2 asm("x2") = c;
	register long x3 asm("x3") = d;
	register long x4 asm("x4") = e;

	asm volatile("svc #0"
		     : "+r"(x0)
		     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
		     : "memory");
	return x0;
}

static long size_of(const char *text)
{
	long size = 0;

	while (text[size])
		size++;
	return size;
}

static void put(long file, const char *text)
{
	syscall5(SYS_write, file, (long)text, size_of(text), 0, 0);
}

/* What the kernel leaves on the stack: the number of arguments, then the arguments. */
__attribute__((used, noreturn)) static void begin(const long *stack)
{
	const char *const *arguments = (const char *const *)(stack + 1);
	const int current_directory = -100, write_only = 1;
	long file;

	put(1, "init: it runs\n");
	if (stack[0] > 1) {
		syscall5(SYS_mount, (long)"debugfs", (long)"/debug", (long)"debugfs", 0, 0);
		file = syscall5(SYS_openat, current_directory,
				(long)"/debug/provoke-crash/DIRECT", write_only, 0, 0);
		put(file, arguments[1]);
		put(1, "init: it runs on\n");
	}
	for (;;)
		syscall5(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2,
			 LINUX_REBOOT_CMD_POWER_OFF, 0, 0);
}

asm(".globl _start\n"
    "_start:\n"
    "	mov	x0, sp\n"
    "	b	begin\n");
