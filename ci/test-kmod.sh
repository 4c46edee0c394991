#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# `make kmod` refuses what it cannot build for, and says why. The kernels here
# are only as much of a build tree as ci/kmod.sh looks at.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

job=kmod
rm -f "$RESULTS/$job"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# make_kernel NAME [SED-SCRIPT]: a copy of the lean kernel's facts, changed.
make_kernel() {
	local kernel=$scratch/$1 lean=$BUILD/linux/lean
	mkdir -p "$kernel/include/generated" "$kernel/include/config" "$kernel/rust"
	cp "$lean/.config" "$lean/Makefile" "$lean/Module.symvers" "$kernel"
	cp "$lean/include/generated/autoconf.h" "$kernel/include/generated"
	cp "$lean/include/config/kernel.release" "$kernel/include/config"
	touch "$kernel/rust/libcore.rmeta" "$kernel/rust/libkernel.rmeta"
	sed -i "${2:-}" "$kernel/.config"
	printf '%s\n' "$kernel"
}

# refused WORDS NAME=VALUE...: make kmod fails, and its errors have these words.
refused() {
	local words=$1 output
	shift
	if output=$(make -s -C "$ROOT" kmod NV_VERSION="$NV_SOURCE_VERSION" "$@" 2>&1); then
		printf 'accepted: %s\n' "$output"
		return 1
	fi
	printf '%s\n' "$output"
	grep -qF -e "$words" <<<"$output"
}

# Objects of gctgroup's own whose headers conftest.sh writes must wait for it, as
# NVIDIA's do, or a cold build on several processors fails now and then.
waits_for_conftest() {
	local folder=$BUILD/work/$NV_SOURCE_VERSION/lean/patched dependencies object found=0
	NV_VERSION=$NV_SOURCE_VERSION KDIR=$BUILD/linux/lean GCT_STOCK='' GCT_KUNIT='' "$ROOT/ci/kmod.sh" || return
	for dependencies in "$folder"/gct/*/.*.o.cmd; do
		grep -q 'conftest/' "$dependencies" || continue
		found=$((found + 1))
		object=$(basename "$dependencies" .cmd)
		object=gct/$(basename "$(dirname "$dependencies")")/${object#.}
		printf '%s includes a header of conftest.sh\n' "$object"
		grep -q "^NV_OBJECTS_DEPEND_ON_CONFTEST .*$object" "$ROOT/Kbuild" || return
	done
	[ $found -gt 0 ]
}

no_rust=$(make_kernel no-rust '/^CONFIG_RUST=/d')
no_debugfs=$(make_kernel no-debugfs '/^CONFIG_DEBUG_FS=/d')
other_rustc=$(make_kernel other-rustc 's/^CONFIG_RUSTC_VERSION_TEXT=.*/CONFIG_RUSTC_VERSION_TEXT="rustc 1.85.1"/')
no_metadata=$(make_kernel no-metadata)
rm "$no_metadata/rust/libcore.rmeta"
other_clang=$(make_kernel other-clang 's/^CONFIG_CLANG_VERSION=.*/CONFIG_CC_IS_CLANG=y\nCONFIG_CLANG_VERSION=110000/')
not_built=$(make_kernel not-built)
rm "$not_built/Module.symvers"
mkdir "$scratch/empty"

check $job "a kernel without Rust" refused "CONFIG_RUST is off" KDIR="$no_rust"
check $job "a kernel without Rust: the way out is named" refused "GCT_STOCK=1" KDIR="$no_rust"
check $job "a kernel without debugfs" refused "CONFIG_DEBUG_FS is off" KDIR="$no_debugfs"
check $job "a kernel built by another rustc" refused '"rustc 1.85.1"' KDIR="$other_rustc"
check $job "headers without Rust metadata" refused "rust/libcore.rmeta is missing" KDIR="$no_metadata"
check $job "a compiler that is not installed" refused "apt-get install clang-11" KDIR="$other_clang"
check $job "a kernel that was not built" refused "no Module.symvers" KDIR="$not_built"
check $job "a directory that is no kernel" refused "no .config" KDIR="$scratch/empty"
check $job "a directory that does not exist" refused "is no directory" KDIR="$scratch/absent"
check $job "a version without a series" refused "NV_VERSION must be one of" NV_VERSION=1.2.3
check $job "a source tree that is not NVIDIA's" refused "no kernel-open/conftest.sh" NV_SRC="$scratch/empty"
check $job "a source tree of another version" refused "is version $NV_DEBIAN_VERSION" \
	NV_SRC="$BUILD/nv/$NV_DEBIAN_VERSION"
check $job "objects that need conftest.sh wait for it" waits_for_conftest
finish $job
