#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the test machine with firmware for its GPU. The UUID is unknown until the first client
# starts the GPU; then it equals the driver's own.
. /test/lib.sh

fail() {
	echo "$*"
	exit 1
}

load_nvidia || fail "nvidia.ko does not load"
[ -z "$(cat $GCT/gpus/0/uuid 2>/dev/null)" ] || fail "a UUID before the GPU was started"
(exec 3</dev/nvidia0) || fail "/dev/nvidia0 cannot be opened"
here=$(cat $GCT/gpus/0/uuid)
driver=$(sed -n 's/^GPU UUID:[[:space:]]*//p' /proc/driver/nvidia/gpus/*/information)
echo "tree: $here, driver: $driver"
[ -n "$here" ] && [ "$here" = "$driver" ] || fail "not the same"
unload_nvidia || fail "nvidia.ko does not unload"
