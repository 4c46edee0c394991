#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Precedes slurm-machine.sh and systemd-machine.sh, which run in a machine with the patched driver
# and cgroup version 2 alone, and print KTAP. They have explain, which says more about a failure.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin
GCT=/sys/kernel/debug/gctgroup

tests=0
result() {
	tests=$((tests + 1))
	printf '%s %d %s\n' "$1" $tests "$2"
}

# soon WHAT COMMAND...: a test that passes as soon as the command succeeds.
soon() {
	local what=$1 limit=$((SECONDS + 60))
	shift
	until "$@" >/tmp/last 2>&1; do
		if [ $SECONDS -ge $limit ]; then
			result "not ok" "$what"
			tail -n 15 /tmp/last
			explain
			return
		fi
		sleep 0.2
	done
	result ok "$what"
}

is() { [ "$1" = "$2" ] || { echo "is $1, not $2"; return 1; }; }
