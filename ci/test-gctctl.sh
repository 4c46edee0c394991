#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs gctctl on the kernel module's tree in a virtual machine with two GPUs.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

JOB=gctctl
SECONDS_MAX=300

rm -f "$RESULTS/$JOB"
need_tools
need_guest_programs gctctl
NV_VERSION=$NV_SOURCE_VERSION "$ROOT/ci/kmod.sh"
"$GCT_VM" run --build "$BUILD" --nv "$NV_SOURCE_VERSION" --gpus 2 \
	--file "$GUEST_BIN/gctctl" "$ROOT/tests/fixtures/captures/one_launch.pbcap" \
	--script "$ROOT/userspace/gctctl/tests/vm.sh" --ktap --quiet --timeout $SECONDS_MAX \
	--results "$RESULTS/$JOB" || true
finish $JOB
