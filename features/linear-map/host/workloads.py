"""What guests do while instructions are counted: shell commands.

In them SIZE stands for how much is done.
"""

from __future__ import annotations

from pagewright.guest import programs
from pagewright.guest.shell import UNLOAD

# The guest program that counts the instructions of a command, and as `init=` those of the boot.
# What it prints, and what it leaves out, is in guest/instructions.c.
COUNTER = programs.path("linear-map", "instructions")

MODULES = "crypto_null dummy veth"

# In each the first run, not counted, brings programs and data into memory.
CRYPT_DISK = """
set -e
key=$(printf '%0128d' 0)
dd if=/dev/zero of=/dev/ram0 bs=1M count=16 2>/dev/null
echo "0 $(cat /sys/block/ram0/size) crypt aes-xts-plain64 $key 0 /dev/ram0 0" |
	dmsetup create --noudevrules --noudevsync crypt
disk=/dev/$(dmsetup info -c --noheadings -o blkdevname crypt)
test -b $disk
write() {
	echo fio --name=write --filename=$disk --rw=randwrite --bs=4k --size=$1 \
		--direct=1 --ioengine=psync --thread --randrepeat=1
}
$(write 64k) >/dev/null
"""
CRYPT = f"""{CRYPT_DISK}{COUNTER} sh -c "$(write SIZEM) >/dev/null"
dmsetup remove crypt
"""

READ = f"""
set -e
dd if=/dev/zero of=/var/tmp/file bs=1M count=SIZE 2>/dev/null
cat /var/tmp/file >/dev/null
{COUNTER} dd if=/var/tmp/file of=/dev/null bs=64k 2>/dev/null
rm /var/tmp/file
"""

MEMCACHED_BEGINS = """
set -e
memcached -u root -l 127.0.0.1 -t 1 -m 64 >/dev/null 2>&1 &
server=$!
sleep 1
load() {
	echo memcslap --servers=127.0.0.1 --concurrency=1 --execute-number=$2 --test=$1
}
$(load set 100) >/dev/null
"""
MEMCACHED_ENDS = """kill $server
wait $server || :
"""
MEMCACHED = f"""{MEMCACHED_BEGINS}\
{COUNTER} sh -c "$(load set SIZE) >/dev/null && $(load get SIZE) >/dev/null"
{MEMCACHED_ENDS}"""

LOAD_UNLOAD = f"modprobe -a {MODULES} && {UNLOAD} {MODULES}"
# Files that stay for a while make the modules' pages come from ever new places.
CHURN = f"""
for turn in $(seq SIZE); do
	head -c $((turn % 13 * 100000)) /dev/zero >/tmp/hold.$((turn % 7))
	{LOAD_UNLOAD} || exit
done
rm -f /tmp/hold.*
sleep 5
"""
MODULE = f"""
set -e
{LOAD_UNLOAD}
{COUNTER} sh -c 'for turn in $(seq SIZE); do {LOAD_UNLOAD} || exit; done'
"""
