#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Downloads the sources: Linux, the Rust library matching rustc, NVIDIA's open
# kernel modules. They are unpacked, never installed.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/apt.sh"

fetch_deb "linux-source-$LINUX_SERIES" "$LINUX_SERIES."
fetch_deb rust-src "$RUST_VERSION"
fetch_deb nvidia-open-kernel-source "$NV_DEBIAN_VERSION-4"
fetch_orig nvidia-open-gpu-kernel-modules "$NV_SOURCE_VERSION"
