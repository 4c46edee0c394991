#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# gctctl, the exporter and the device plugin's hooks on the kernel module's tree, in a machine with
# two GPUs. Groups and members:
#
#   root -- web    (a sleeping process, by pid)
#        |- batch  (cgroup /pod7)
#        `- k8s_.. (a container's cgroup: /test/hooks.sh)
#
# Some commands run where debugfs is not mounted. A limit that this module does not enforce
# must end with 5 (EOPNOTSUPP), and what is in force may be written back.

. /test/lib.sh
tar -C / -xf /test/programs.tar

# What the tests below do, in this order; the plan is its length.
count=0
total=79

# expect CODE TEXT COMMAND...: it must exit with CODE and print TEXT.
expect() {
	code=$1 text=$2
	shift 2
	"$@" >/tmp/out 2>&1
	got=$?
	count=$((count + 1))
	if [ $got -eq "$code" ] && grep -qF -- "$text" /tmp/out; then
		echo "ok $count $*"
		return
	fi
	echo "# exit $got instead of $code, or no \"$text\" in:"
	sed 's/^/# /' /tmp/out
	echo "not ok $count $*"
}

echo "KTAP version 1"
echo "1..$total"

expect 7 'There is no gctgroup tree' gctctl ls
expect 1 'nvidia is not loaded' gctctl doctor
load_nvidia >/dev/null
load_uvm >/dev/null
expect 0 'gctgroup works here' gctctl doctor
expect 0 'gctgroup 0.1.0 abi 3' gctctl version
expect 0 'no groups and no processes' gctctl ls

expect 0 'created batch' gctctl create web batch
expect 3 'EEXIST' gctctl create web
expect 3 'EINVAL' gctctl create 9x
expect 4 'ENOENT' gctctl rm nobody

sleep 300 &
member=$!
expect 0 "web: process $member" gctctl attach web --pid $member
expect 4 'ESRCH' gctctl attach web --pid 4000000
mkdir /sys/fs/cgroup/pod7
expect 0 'batch: cgroup /pod7' gctctl attach batch --cgroup /pod7
expect 3 'EEXIST' gctctl attach web --cgroup /pod7
expect 3 'EINVAL' gctctl attach web --cgroup pod7
expect 0 '"cgroup": "/pod7"' gctctl ls --json
expect 0 "$member" gctctl get web group.procs

expect 0 'web/0 gmem.limit=8589934592' gctctl set web/0 gmem.limit=8G
expect 5 'EOPNOTSUPP' gctctl set web slip.power=5
expect 0 'web/1 compute.timeslice=2000' gctctl set web compute.timeslice=2ms
expect 3 'ERANGE' gctctl set web/0 compute.timeslice=2
expect 3 'EINVAL' gctctl set web/0 compute.max=1
expect 4 'has no file' gctctl set web/0 no.such=1
expect 0 '8589934592' gctctl get web/0 gmem.limit
expect 0 '0' gctctl get web/0 gmem.current
expect 0 '0 of 8589934592 bytes' gctctl explain web/0 --interval 100ms
expect 5 'EOPNOTSUPP' gctctl get web/0 slip.power
expect 4 'There is no web/9' gctctl get web/9 gmem.current
expect 0 '(unsupported)' gctctl show web

. /test/machine.sh

expect 3 'EBUSY' gctctl rm web
# Without debugfs, as in a container.
umount /sys/kernel/debug
expect 0 'The tree is used by /dev/gctgroup: /sys/kernel/debug/gctgroup cannot be used' gctctl doctor
expect 0 'gctgroup 0.1.0 abi 3' gctctl version
expect 0 'web/0 gmem.limit=4294967296' gctctl set web/0 gmem.limit=4G
expect 3 'EBUSY' gctctl rm web
# More names than gctctl has room for at first.
names=
for number in $(seq 100 199); do
	names="$names a_name_as_long_as_those_of_pods_are_$number"
done
gctctl create $names >/dev/null
expect 0 'a_name_as_long_as_those_of_pods_are_199' gctctl ls
gctctl rm $names >/dev/null
mount -t debugfs debugfs /sys/kernel/debug
expect 0 'debugfs is used' gctctl doctor

. /test/hooks.sh
. /test/guide.sh

kill $member
wait $member 2>/dev/null
expect 0 'removed batch' gctctl rm web batch
expect 0 'ran GRID_CTA' gctctl capture check /test/one_launch.pbcap
exit 0
