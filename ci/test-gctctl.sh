#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs gctctl and the device plugin's hooks on the kernel module's tree in a virtual machine with
# two GPUs.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

JOB=gctctl
SECONDS_MAX=600

rm -f "$RESULTS/$JOB"
need_tools
need_guest_programs gctctl rm-client
need_firmware "$BUILD/gctctl/firmware"
# The job host compiles the plugin's many crates in the same way. It is not static, so its libraries
# come with it.
need_programs "$BUILD/gctctl"
plugin=$BUILD/gctctl/gct-device-plugin
tar -C / -cPhf "$BUILD/gctctl/plugin.tar" --transform "s|^$plugin|/bin/gct-device-plugin|" \
	"$plugin" $(ldd "$plugin" | grep -o '/[^ ]*')
NV_VERSION=$NV_SOURCE_VERSION "$ROOT/ci/kmod.sh"
"$GCT_VM" run --build "$BUILD" --nv "$NV_SOURCE_VERSION" --gpus 2 \
	--file "$GUEST_BIN"/{gctctl,rm-pod} "$BUILD/gctctl/plugin.tar" "$FIRMWARE" \
	"$ROOT/userspace/gct-device-plugin/tests/hooks.sh" "$ROOT/userspace/gctctl/tests/guide.sh" \
	"$ROOT/gctgroup-docs/guide.md" "$ROOT/tests/fixtures/captures/one_launch.pbcap" \
	--script "$ROOT/userspace/gctctl/tests/vm.sh" --ktap --quiet --timeout $SECONDS_MAX \
	--log "$BUILD/log/$JOB.log" --results "$RESULTS/$JOB" || true
finish $JOB
