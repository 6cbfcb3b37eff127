/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the guest's own programs share: reading a line of a file, and the links
 * to the named ports of the virtio console.
 */
#ifndef _GUEST_H
#define _GUEST_H

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/**
 * read_line() - read the first line of a file
 * @path: the file
 * @line: takes the line, without its newline; empty if there is no such file
 * @size: size of @line
 *
 * Return: the length of the line.
 */
static inline size_t read_line(const char *path, char *line, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, line, size - 1);

	if (fd >= 0)
		close(fd);
	line[length > 0 ? length : 0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	return strlen(line);
}

/**
 * link_ports() - give the named ports of the virtio console their names in /dev
 *
 * A port gets its name from a message of the host, which the kernel's work queue
 * handles. The name may therefore come later than the port, so whoever misses a
 * port calls this again.
 */
static inline void link_ports(void)
{
	static const char class[] = "/sys/class/virtio-ports";
	char path[PATH_MAX], name[NAME_MAX];
	DIR *ports = opendir(class);
	struct dirent *port;

	if (!ports)
		return;
	while ((port = readdir(ports))) {
		if (port->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s/name", class, port->d_name);
		if (!read_line(path, name, sizeof(name)))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", name);
		/* If the link is there already, it is the same. */
		if (symlink(port->d_name, path))
			continue;
	}
	closedir(ports);
}

#endif
