# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Executes each block of commands of the guide's section on the patched driver, in order. Sourced by
# vm.sh, which has `expect`; the programs are tests/rm-client's.
mkdir -p /tmp/guide
cd /tmp/guide
for program in serve train; do
	printf '#!/bin/sh\nexec rm-pod 16\n' >$program
	chmod +x $program
done
awk '/^## / { on = $0 == "## With the patched driver" }
	!on { next }
	/^    / { if (!in_block) block++; in_block = 1; sub(/^    /, ""); print >("block" block); next }
	{ in_block = 0 }' /test/guide.md

train_is_member() {
	[ -n "$(gctctl get train group.procs)" ]
}

# What must be so after a block.
after() {
	case $1 in
	2) [ "$(gctctl get serve/0 gmem.limit)" = 21474836480 ] ;;
	3)
		waits_for 'the service' grep -qx rm-pod /proc/$(gctctl get serve group.procs)/comm
		waits_for 'the training' train_is_member
		;;
	4) [ "$(gctctl get serve/0 compute.timeslice)" = 8000 ] && [ "$(gctctl get train/0 compute.freeze)" = 0 ] ;;
	5) [ "$(gctctl get serve group.cgroup)" = /system.slice/serve.service ] ;;
	6) ! gctctl get serve group.procs && ! gctctl get train group.procs ;;
	esac
}

# All in one shell, as somebody types them.
(
	set -e
	for number in 1 2 3 4 5 6; do
		. ./block$number
		after $number
		echo "block $number is done"
	done
) >log 2>&1
for number in 1 2 3 4 5 6; do
	expect 0 "block $number is done" cat log
done
expect 0 'blocks: 6' sh -c 'echo blocks: $(ls block* | wc -l)'
cd /test
