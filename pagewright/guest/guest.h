/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the guest's own programs share: the links to the named ports of the virtio
 * console.
 */
#ifndef _GUEST_H
#define _GUEST_H

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "files.h"

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
		if (line_read(path, name, sizeof(name)) <= 0)
			continue;
		snprintf(path, sizeof(path), "/dev/%s", name);
		/* If the link is there already, it is the same. */
		if (symlink(port->d_name, path))
			continue;
	}
	closedir(ports);
}

#endif
