#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs gctctl, the exporter and the device plugin's hooks on the kernel module's tree in a virtual
# machine with two GPUs.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

JOB=gctctl
SECONDS_MAX=600

rm -f "$RESULTS/$JOB"
need_driver
need_tools
need_guest_programs gctctl rm-client
need_software_gpu "$VERSION" "$BUILD/gctctl/firmware"
# The job host compiles their many crates in the same way. They are not static, so their libraries
# come with them.
need_programs "$BUILD/gctctl"
programs=("$BUILD"/gctctl/gct-{device-plugin,exporter})
tar -C / -cPhf "$BUILD/gctctl/programs.tar" --transform "s|^$BUILD/gctctl/|/bin/|" \
	"${programs[@]}" $(ldd "${programs[@]}" | grep -o '/[^ ]*\.so[^ ]*' | sort -u)
NV_VERSION=$VERSION "$ROOT/ci/kmod.sh"
"$GCT_VM" run --build "$BUILD" --nv "$VERSION" "${SOFTWARE_GPU[@]}" --gpus 2 \
	--file "$GUEST_BIN"/{gctctl,rm-pod} "$BUILD/gctctl/programs.tar" "$FIRMWARE" \
	"$ROOT/userspace/gct-device-plugin/tests/hooks.sh" "$ROOT/userspace/gctctl/tests/guide.sh" \
	"$ROOT/userspace/gct-exporter/tests/machine.sh" \
	"$ROOT/gctgroup-docs/guide.md" "$ROOT/tests/fixtures/captures/one_launch.pbcap" \
	--script "$ROOT/userspace/gctctl/tests/vm.sh" --ktap --quiet --timeout $SECONDS_MAX \
	--log "$BUILD/log/$JOB.log" --results "$RESULTS/$JOB" || true
finish $JOB
