#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Started by first-stage.c in the one boot that makes a Debian of unpacked packages (see debian.py). It
# has dpkg configure the packages, with all their scripts, and has GRUB installed.

# What the disk is called by the kernel that runs this: partitions 1 to 3 are for UEFI, /boot, /.
disk=/dev/vda

# dpkg runs these before it unpacks a package, which it did where none of them could run.
run_preinsts() {
	for script in /var/lib/dpkg/info/*.preinst; do
		package=$(basename "$script" .preinst)
		DPKG_MAINTSCRIPT_PACKAGE=${package%:*} DPKG_MAINTSCRIPT_NAME=preinst \
			DPKG_MAINTSCRIPT_ARCH=$(dpkg-query -f '${Architecture}' -W "$package") \
			"$script" install || return
	done
}

main() {
	mount -t proc proc /proc
	mount -t sysfs sysfs /sys
	mount -t tmpfs tmpfs /run
	mkdir -p /dev/pts
	mount -t devpts devpts /dev/pts
	mount -o remount,rw /
	mount "${disk}2" /boot

	# The first packages' scripts ask for root by name before there is a list of users.
	[ -e /etc/passwd ] || cp /usr/share/base-passwd/passwd.master /etc/passwd
	[ -e /etc/group ] || cp /usr/share/base-passwd/group.master /etc/group

	run_preinsts || return

	cat >/etc/fstab <<-EOF
		UUID=$(blkid -s UUID -o value "${disk}3") / ext4 defaults 0 1
		UUID=$(blkid -s UUID -o value "${disk}2") /boot ext4 defaults 0 2
		UUID=$(blkid -s UUID -o value "${disk}1") /boot/efi vfat umask=0077,nofail 0 1
	EOF
	echo server >/etc/hostname
	echo "127.0.0.1 localhost server" >/etc/hosts

	# No service is started here: systemd does not run.
	printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d

	# Both the hook of the kernel's package and the trigger of initramfs-tools would make an initramfs,
	# which takes minutes here. The trigger comes last, and makes one only where it finds the kernel.
	INITRD=No dpkg --force-depends --force-unsafe-io --force-confold --configure -a || return
	[ -e "$(echo /boot/initrd.img-*)" ] || update-initramfs -c -k all || return
	rm /usr/sbin/policy-rc.d

	# Root gets a shell on the virtio console, where the kernel prints nothing.
	passwd -d root || return
	mkdir -p /etc/systemd/system/serial-getty@hvc0.service.d
	cat >/etc/systemd/system/serial-getty@hvc0.service.d/autologin.conf <<-'EOF'
		[Service]
		ExecStart=
		ExecStart=-/sbin/agetty --autologin root --noclear hvc0 dumb
	EOF
	systemctl enable serial-getty@hvc0.service || return
	systemctl mask serial-getty@ttyAMA0.service || return
	# Where the computer is busy an emulated machine takes longer for its devices than the 90 seconds
	# after which systemd would give up.
	mkdir -p /etc/systemd/system.conf.d
	cat >/etc/systemd/system.conf.d/emulated.conf <<-'EOF'
		[Manager]
		DefaultTimeoutStartSec=30min
		DefaultDeviceTimeoutSec=30min
	EOF
	systemctl disable apt-daily.timer apt-daily-upgrade.timer
	echo "PS1='guest# '" >>/root/.bashrc

	cat >/etc/default/grub <<-'EOF'
		GRUB_DEFAULT=0
		GRUB_TIMEOUT=1
		GRUB_DISTRIBUTOR=Debian
		GRUB_CMDLINE_LINUX_DEFAULT=""
		GRUB_CMDLINE_LINUX="console=ttyAMA0 panic=5"
		GRUB_TERMINAL=console
	EOF
	# Only now the kernel finds its module for this file system.
	mkdir -p /boot/efi
	mount "${disk}1" /boot/efi || return
	grub-install --target=arm64-efi --efi-directory=/boot/efi --removable --no-nvram || return

	# There is no udev that makes these links. Without them GRUB's menu would have the disk by the name
	# that it has now, and with another disk beside it the kernel may call it something else.
	mkdir -p /dev/disk/by-uuid
	for part in 1 2 3; do
		ln -s "$disk$part" "/dev/disk/by-uuid/$(blkid -s UUID -o value "$disk$part")"
	done
	update-grub || return
	grep -q root=UUID= /boot/grub/grub.cfg
}

export SYSTEMD_OFFLINE=1
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true
if main; then
	echo "second stage: done"
else
	echo "second stage: failed"
fi
umount /boot/efi /boot
mount -o remount,ro /
sync
echo o >/proc/sysrq-trigger
sleep 60
