# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# For scripts in the test machine: `. /test/lib.sh`.

# The root of the tree.
GCT=/sys/kernel/debug/gctgroup

# load_nvidia [PARAMETER=VALUE...]: inserts nvidia.ko and creates its device nodes, as
# nvidia-modprobe does on a real machine.
load_nvidia() {
	insmod /modules/nvidia.ko "$@" || return
	[ -e /dev/nvidiactl ] || mknod -m 666 /dev/nvidiactl c 195 255
	local minor=0
	for gpu in /proc/driver/nvidia/gpus/*; do
		[ -d "$gpu" ] || continue
		[ -e /dev/nvidia$minor ] || mknod -m 666 /dev/nvidia$minor c 195 $minor
		minor=$((minor + 1))
	done
}

# load_uvm [PARAMETER=VALUE...]: inserts nvidia-uvm.ko and creates its nodes.
load_uvm() {
	insmod /modules/nvidia-uvm.ko "$@" || return
	local major
	major=$(awk '$2 == "nvidia-uvm" { print $1 }' /proc/devices)
	rm -f /dev/nvidia-uvm /dev/nvidia-uvm-tools
	mknod -m 666 /dev/nvidia-uvm c "$major" 0
	mknod -m 666 /dev/nvidia-uvm-tools c "$major" 1
}

# Removes both modules; fails if one is in use.
unload_nvidia() {
	[ ! -e /sys/module/nvidia_uvm ] || rmmod nvidia_uvm || return
	[ ! -e /sys/module/nvidia ] || rmmod nvidia
}
