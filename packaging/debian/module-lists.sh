# Remove what depmod made, which is in no package's list of files, and the folder if it is empty then.
remove_module_lists() {
	lists=/usr/lib/modules/@RELEASE@
	rm -f "$lists"/modules.alias "$lists"/modules.dep "$lists"/modules.devname \
		"$lists"/modules.softdep "$lists"/modules.symbols "$lists"/modules.weakdep \
		"$lists"/modules.*.bin
	[ ! -d "$lists" ] || rmdir --ignore-fail-on-non-empty "$lists"
}
