#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Checks the Rust toolchain, builds bindgen, unpacks the library source that the
# kernel compiles `core` from, and writes build/env.sh for all other scripts.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

printf '==> Rust toolchain\n'
need_rust rustc cargo cargo-clippy cargo-fmt
found=$(rustc --version | cut -d' ' -f2)
[ "$found" = "$RUST_TESTED" ] ||
	note "rustc is $found; everything was tested with $RUST_TESTED (rustup default $RUST_TESTED)"
cargo clippy --version >/dev/null 2>&1 || die "clippy is missing: rustup component add clippy"
cargo fmt --version >/dev/null 2>&1 || die "rustfmt is missing: rustup component add rustfmt"
libclang=/usr/lib/llvm-$LLVM_MAJOR/lib
ls "$libclang"/libclang*.so* >/dev/null 2>&1 ||
	die "no libclang in $libclang: run ci/setup-packages.sh (package libclang1-$LLVM_MAJOR)"
note "rustc $found, libclang $LLVM_MAJOR"

build_bindgen() {
	CARGO_TARGET_DIR=$BUILD/target-bindgen cargo install bindgen-cli \
		--version "=$BINDGEN_VERSION" --locked --root "$1"
	rm -rf "$BUILD/target-bindgen"
}
build_once bindgen "$(content_key "$BINDGEN_VERSION" "$(rustc --version)")" \
	"bindgen $BINDGEN_VERSION" build_bindgen
link_to "$built" "$BUILD/tools"

unpack_rust_src() {
	dpkg-deb -x "$DEB" "$1"
	test -e "$1/usr/src/rustc-$found/library/core/src/lib.rs"
}
rustup_library=$(rustc --print sysroot)/lib/rustlib/src/rust/library
if [ -e "$rustup_library/core/src/lib.rs" ]; then
	link_to "$rustup_library" "$BUILD/rust-library"
else
	DEB=$(readlink -f "$BUILD/debs/rust-src.deb")
	build_once rust-src "$(content_key "$(basename "$DEB")")" "Rust library source" unpack_rust_src
	link_to "$built/usr/src/rustc-$found/library" "$BUILD/rust-library"
fi

cat >"$BUILD/env.sh" <<ENV
# Written by ci/setup-rust.sh; source it before building kernels or modules.
export PATH=$BUILD/tools/bin:\$PATH
export LIBCLANG_PATH=$libclang
export RUST_LIB_SRC=$(readlink -f "$BUILD/rust-library")
export KBUILD_BUILD_TIMESTAMP='2025-01-01' KBUILD_BUILD_USER=gct KBUILD_BUILD_HOST=gct
ENV
