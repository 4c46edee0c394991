# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What gct-exporter reads of the kernel module's tree, through debugfs and through /dev/gctgroup.
# The machine has no network, so it prints the page. Sourced by gctctl's vm.sh, which has `expect`,
# the groups web and batch, and two GPUs.

# page FILE: the samples, but for the time that this and the driver's threads took.
page() {
	gct-exporter --once >/tmp/page || return
	grep -v -e '^#' -e read_time -e gpu_worker_ /tmp/page >$1
	echo "$(grep -c . $1) samples"
}

# has SERIES VALUE: the page has this value. The pattern is a fixed string.
has() {
	grep -xF -- "$1 $2" /tmp/debugfs.page
}

# says_the_file OWNER/GPU FILE METRIC: the page has what the file says.
says_the_file() {
	has "gctgroup_group_$3{gpu=\"${1#*/}\",group=\"${1%/*}\"}" "$(cat /sys/kernel/debug/gctgroup/$1/$2)"
}

# Each group of the tree, and no other.
groups_are_those_of_the_tree() {
	sed -n 's/^gctgroup_group_info{group="\([^"]*\)".*/\1/p' /tmp/debugfs.page | sort >/tmp/shown
	ls -d /sys/kernel/debug/gctgroup/[a-z_]*/group.procs | cut -d/ -f6 | sort | diff /tmp/shown - && cat /tmp/shown
}

by_the_device() {
	umount /sys/kernel/debug
	page /tmp/device.page
	mount -t debugfs debugfs /sys/kernel/debug
	diff /tmp/debugfs.page /tmp/device.page && echo 'the same page'
}

expect 0 ' samples' page /tmp/debugfs.page
expect 0 'gctgroup_up 1' has gctgroup_up 1
expect 0 'gctgroup_' has gctgroup_exporter_read_errors_total 0
expect 0 'batch' groups_are_those_of_the_tree
expect 0 'gctgroup_' has 'gctgroup_gpu_healthy{gpu="1"}' 1
expect 0 'gctgroup_' has 'gctgroup_gpu_feature{gpu="0",file="gmem.limit"}' 1
expect 0 '8589934592' says_the_file web/0 gmem.limit memory_limit_bytes
expect 0 ' 0' says_the_file web/0 gmem.current memory_usage_bytes
expect 0 'gctgroup_' has 'gctgroup_group_compute_timeslice_seconds{gpu="1",group="web"}' 0.002
expect 0 'gctgroup_' has 'gctgroup_group_processes{group="web"}' 1
expect 0 'cgroup="/pod7"' grep '^gctgroup_group_info{group="batch"' /tmp/debugfs.page
# As under Secure Boot, and in containers.
expect 0 'the same page' by_the_device
