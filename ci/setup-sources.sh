#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Downloads the sources: Linux, the Rust library matching rustc, NVIDIA's open
# kernel modules. They are unpacked, never installed.
. "$(dirname "$0")/lib.sh"
chosen=${LINUX_SERIES:-}
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/apt.sh"

[[ -z $chosen || " $LINUX_SUPPORTED " = *" $chosen "* ]] ||
	die "LINUX_SERIES=$chosen is not supported; supported: $LINUX_SUPPORTED"
linux=()
for series in ${chosen:-$LINUX_SUPPORTED}; do
	linux+=("linux-source-$series=$series.")
done
fetch_first "${linux[@]}"

rust=$(rustc --version | cut -d' ' -f2) || die "rustc is missing: rustup toolchain install $RUST_TESTED --component clippy,rustfmt"
if [ -e "$(rustc --print sysroot)/lib/rustlib/src/rust/library/core/src/lib.rs" ]; then
	printf '==> Rust library source\n'
	note "rustup has it (component rust-src)"
else
	(fetch_first "rust-src=$rust") ||
		die "the kernel needs the library source of rustc $rust: rustup component add rust-src, or a toolchain of which Debian has it"
fi

# The patches are made for Debian's fourth revision; `make test-patches` says whether
# another one has the files that they change.
fetch_first "nvidia-open-kernel-source=$NV_DEBIAN_VERSION-4" \
	"nvidia-open-kernel-source=$NV_DEBIAN_VERSION-"
fetch_orig nvidia-open-gpu-kernel-modules "$NV_SOURCE_VERSION"
