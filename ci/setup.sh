#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: setup.sh [demo]
#
# Prepares everything that building and testing needs; what is there already is
# left alone. With "demo" only the parts that `make demo` needs: one driver
# version and one kernel.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/cargo-store.sh"
. "$ROOT/ci/chroot.sh"

cd "$ROOT"
start=$SECONDS
# Before minutes of downloads.
need_rust rustc cargo
ci/setup-packages.sh
ci/setup-sources.sh
ci/setup-rust.sh
restore_crates
ci/setup-qemu.sh
ci/setup-nvidia.sh "$NV_SOURCE_VERSION"
ci/setup-linux.sh lean
# A mirror of Debian need not have non-free.
ci/setup-cuda.sh || { rm -f "$BUILD/cuda" && note "left out: the job cuda, and a part of the demo"; }
if [ "${1:-}" != demo ]; then
	ci/setup-nvidia.sh "$NV_DEBIAN_VERSION"
	ci/setup-linux.sh debug
	ci/setup-prometheus.sh
	! can_run_kubernetes || ci/setup-kubernetes.sh
	! can_chroot || ci/setup-chroot.sh
fi
# The software GPU takes the names of what it records from there, on any series of Linux.
for tree in "$BUILD"/nv/*; do
	[ "$BUILD" = "$ROOT/build" ] || link_to "$(readlink -f "$tree")" "$ROOT/build/nv/${tree##*/}"
done
printf 'setup: complete after %d s\n' $((SECONDS - start))
