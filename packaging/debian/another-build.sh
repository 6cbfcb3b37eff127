# Refuse to install PACKAGE if the kernel or the headers of another build of its name are there.
# The function takes the first argument of preinst, and PACKAGE.
#
# Builds of one number have the same name, whatever they are made of. The kernel of one fits neither
# the modules nor the headers of another. If one kernel replaced another, any package could have an
# initramfs made in between, of modules that the kernel in /boot refuses, and DKMS would keep the
# modules that it made for the name. Modules that are compiled against the headers of another build
# may be loaded, because they are made for the same name, and find per-CPU data in the wrong place.
# A reinstallation is not refused, because all that it finds was installed by this build.
refuse_another_build() {
	case "$1" in
	install | upgrade) ;;
	*) return 0 ;;
	esac
	kernel=/usr/lib/modules/@RELEASE@/vmlinuz
	# It says which kernel the headers belong to.
	headers=/usr/src/linux-headers-@RELEASE@/kernel.sha256
	others=
	# A file that has been damaged, or signed, is still of this build if dpkg installed it as such:
	# who reinstalls the package wants to have it mended.
	if [ -e "$kernel" ] && ! echo "@KERNEL_DIGEST@  $kernel" | sha256sum --check --status &&
		! dpkg-query --control-show linux-image-@RELEASE@ md5sums 2>/dev/null |
		grep -q "^@KERNEL_MD5@  usr/lib/modules/@RELEASE@/vmlinuz$"; then
		others=linux-image-@RELEASE@
	fi
	if [ -e "$headers" ] && ! grep -q "^@KERNEL_DIGEST@ " "$headers"; then
		others="${others:+$others }linux-headers-@RELEASE@"
	fi
	[ -n "$others" ] || return 0
	echo "$2: another build of the same name is installed: $others." >&2
	echo "This one was not installed. Make it with a higher number (pagewright deb --number)." \
		"Or boot another kernel, remove that build (apt purge $others)," \
		"then try again." >&2
	exit 1
}
