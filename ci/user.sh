#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Builds the user-space mode and what measures and tests it on a GPU, into
# build/user. It needs Rust and a C linker and nothing of `make setup`; the
# folder can be copied to another machine.
. "$(dirname "$0")/lib.sh"

OUT=$BUILD/user
FILES=(gctd gctctl libgct_preload.so gct-load gct-hw)

step "user-space programs" cargo build --release --locked \
	--manifest-path "$ROOT/userspace/Cargo.toml" \
	-p gctd -p gctctl -p gct-preload -p gct-load -p gct-hw
mkdir -p "$OUT"
# The debug information stays with cargo.
install --strip "${FILES[@]/#/$CARGO_TARGET_DIR/release/}" "$OUT"
note "build/user: ${FILES[*]}"
