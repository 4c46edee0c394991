#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: user.sh [DIR [PROFILE]]
#
# Builds the user-space mode and what measures and tests it on a GPU, into DIR,
# else build/user, with cargo's PROFILE, else release. It needs Rust and a C
# linker and nothing of `make setup`; the folder can be copied to another machine.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

OUT=${1:-$BUILD/user}
PROFILE=${2:-release}
FILES=(gctd gctctl gct-exporter gct-device-plugin libgct_preload.so gct-load gct-hw)

need_rust rustc cargo
command -v cc >/dev/null || die "a C linker is missing: apt-get install gcc libc6-dev"
step "user-space programs" cargo build --profile "$PROFILE" --locked \
	--manifest-path "$ROOT/userspace/Cargo.toml" \
	-p gctd -p gctctl -p gct-exporter -p gct-device-plugin -p gct-preload -p gct-load -p gct-hw
# Cargo's directory of the profile dev has another name.
built=$CARGO_TARGET_DIR/${PROFILE/#dev/debug}
mkdir -p "$OUT"
# The debug information stays with cargo.
install --strip "${FILES[@]/#/$built/}" "$OUT"
# The loader of an older container would end every program in it.
newest=$(objdump -p "$OUT/libgct_preload.so" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1)
[ "$newest" = GLIBC_2.17 ] || die "$OUT/libgct_preload.so needs $newest: see userspace/gct-preload/glibc"
note "$OUT: ${FILES[*]}"
