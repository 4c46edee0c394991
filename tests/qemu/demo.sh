# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs `make demo` in the machine. The demo checks every command that it shows, and ends at the
# first that does not do what the text says.

. /test/lib.sh

fail() {
	echo
	echo "demo: FAILED: $*"
	exit 1
}

title() {
	echo
	echo "== $* =="
}

say() {
	echo "   $*"
}

# shown COMMAND: prints and runs it; it must succeed.
shown() {
	echo " # $1"
	eval "$1" || fail "\"$1\" did not succeed"
}

# refused MESSAGE COMMAND: prints and runs it; it must fail with this message.
refused() {
	echo " # $2"
	if (eval "$2") 2>/tmp/stderr; then
		fail "\"$2\" was accepted"
	fi
	cat /tmp/stderr
	grep -q "$1" /tmp/stderr || fail "\"$2\" was refused, but not with \"$1\""
}

# holds VALUE FILE: prints the file, which must consist of this line.
holds() {
	echo " # cat $2"
	cat "$2"
	[ "$(cat "$2")" = "$1" ] || fail "$2 does not read \"$1\""
}

# The driver's version, read from the driver.
modinfo_version() {
	sed -n 's/^NVRM version:.*Kernel Module for x86_64  *\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version
}

title "1. NVIDIA's driver, patched, finds a GPU"
say "tests/fakegpu emulates one GH100 for this machine. The modules are NVIDIA's own,"
say "built for this kernel with gctgroup inside nvidia.ko."
echo " # insmod nvidia.ko; insmod nvidia-uvm.ko"
load_nvidia || fail "nvidia.ko does not load"
load_uvm || fail "nvidia-uvm.ko does not load"
shown "cd $GCT; ls"
shown "cat version"
shown "grep . gpus/0/name gpus/0/pci gpus/0/pci.id gpus/0/architecture"

title "2. Two groups share it"
shown "echo create web >control"
shown "echo create batch >control"
say "A process and all its later children join by pid ..."
sleep 300 &
server=$!
shown "echo $server >web/group.procs"
holds $server web/group.procs
say "... or by cgroup, as containers do: when the process opens the driver."
mkdir /sys/fs/cgroup/pod7 || fail "no cgroup v2"
shown "echo /pod7 >batch/group.cgroup"
echo " # in /pod7: gct-selftest client --hold 300 &"
sh -c 'echo $$ >/sys/fs/cgroup/pod7/cgroup.procs; exec gct-selftest client --hold 300' &
job=$!
until [ -n "$(cat batch/group.procs)" ]; do
	[ -d /proc/$job ] || fail "the client ended"
	sleep 0.1
done
holds $job batch/group.procs

title "3. Limits on GPU 0"
shown "ls web/0"
holds default web/0/compute.timeslice
say "The value in force can be written back:"
shown "echo default >web/0/compute.timeslice"
say "A limit takes effect before the write returns:"
shown "echo 2000 >web/0/compute.timeslice"
holds 2000 web/0/compute.timeslice
shown "echo default >web/0/compute.timeslice"
holds default web/0/compute.timeslice
say "So can device memory be limited:"
shown "echo 8G >batch/0/gmem.limit"
holds 8589934592 batch/0/gmem.limit
say "A limit that this build cannot enforce is refused, neither stored nor shown:"
refused 'not supported' 'echo 5 >batch/0/slip.power'
refused 'not supported' 'cat batch/0/slip.power'

title "4. Bad input changes nothing"
refused 'Invalid argument' 'echo 2000 apples >web/0/compute.timeslice'
refused 'out of range' 'echo 10001 >web/0/compute.weight'
refused 'No such process' 'echo 4000000 >web/group.procs'
refused 'Invalid argument' 'echo create 9lives >control'
refused 'File exists' 'echo create web >control'
refused 'busy' 'echo remove web >control'
holds default web/0/compute.timeslice
holds $server web/group.procs

title "5. A member opens the driver"
say "A program in \"web\" allocates a client of NVIDIA's resource manager (RM)."
shown "sh -c 'echo 0 >web/group.procs; exec gct-selftest client'"

title "6. The same through gctctl"
shown "gctctl ls"
shown "gctctl get batch group.cgroup"
refused 'EOPNOTSUPP' 'gctctl set web/0 slip.power=5'
shown "gctctl doctor"

case $(modinfo_version) in
535.261.03 | 580.142)
	. /test/demo-work.sh
	. /test/demo-memory.sh
	. /test/demo-limits.sh
	[ ! -e /root.tar ] || . /test/demo-cuda.sh
	;;
*)
	title "7. Work"
	say "The software GPU does not know this version, so it shows no work."
	;;
esac

title "11. Cleaning up"
kill $server $job
wait
shown "echo remove web >control"
shown "echo remove batch >control"
cd /
shown "rmmod nvidia_uvm"
shown "rmmod nvidia"
[ ! -e "$GCT" ] || fail "the tree is still there"
say "$GCT is gone, and the kernel has reported no bug."

if [ -s /tmp/picture ]; then
	title "Who ran where while the quota was kept, lent and kept again: left (L), right (R)"
	cat /tmp/picture
fi
exit 0
