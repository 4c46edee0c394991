#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the test machine and prints the driver's behaviour as user space sees it: exit codes,
# /proc, leftovers after unloading. ci/test-patches.sh compares the output of the stock and the
# patched modules.
. /test/lib.sh

try() {
	"$@" >/tmp/output 2>&1
	echo "$* -> $? $(sed 's/^[^:]*: //' /tmp/output | tail -n 1)"
}

open_file() {
	(exec 3<"$1")
}

try load_nvidia
for minor in 255 0 7; do
	mknod -m 666 /dev/node$minor c 195 $minor
	try open_file /dev/node$minor
done
# A process that is killed with the control file open, and one that inherits it.
(exec 3</dev/node255 && sleep 100) 2>/dev/null &
victim=$!
(exec 3</dev/node255 && (sleep 1) & wait) 2>/dev/null
kill -9 $victim 2>/dev/null
wait $victim 2>/dev/null
cat /proc/driver/nvidia/gpus/*/information 2>/dev/null | grep -v IRQ
grep -o 'NVIDIA UNIX.*  [0-9.]*' /proc/driver/nvidia/version 2>/dev/null
grep nvidia /proc/devices
try load_uvm
try open_file /dev/nvidia-uvm
try unload_nvidia
ls -d /proc/driver/nvidia /sys/module/nvidia* /sys/kernel/debug/gctgroup 2>/dev/null
grep nvidia /proc/devices
echo end
