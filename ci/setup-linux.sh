#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: setup-linux.sh lean|debug
#
# Unpacks Linux and builds one flavour of the test machine's kernel, out of
# tree, with everything that out-of-tree Rust modules need. The flavour's
# configuration is tinyconfig + base.config + FLAVOUR.config of tests/qemu.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$BUILD/env.sh"

flavour=${1:?usage: setup-linux.sh lean|debug}
case $flavour in
lean) toolchain=() compiler=gcc ;;
debug) toolchain=(LLVM="-$LLVM_MAJOR") compiler=clang-$LLVM_MAJOR ;;
*) die "unknown kernel flavour $flavour" ;;
esac
fragments=("$ROOT/tests/qemu/base.config" "$ROOT/tests/qemu/$flavour.config")
deb=$(readlink -f "$BUILD/debs/linux-source-$LINUX_SERIES.deb")

unpack_linux() {
	rm -rf "$1/src"
	mkdir "$1/src"
	dpkg-deb --fsys-tarfile "$deb" |
		tar x -O "./usr/src/linux-source-$LINUX_SERIES.tar.xz" |
		xz -T2 -dc | tar x --strip-components=1 -C "$1/src"
	test -e "$1/src/Kbuild"
}

# The options that the fragments ask for and Kconfig did not grant. An option
# turned off may be absent altogether.
check_config() {
	local config=$1 line name missing=0
	while read -r line; do
		case $line in
		CONFIG_*=n)
			name=${line%=n}
			! grep -q "^$name=" "$config" || { echo "$name is on, the fragment turns it off"; missing=1; }
			;;
		CONFIG_*)
			grep -qxF "$line" "$config" || { echo "$line was asked for, .config has: $(grep -w "${line%%=*}" "$config" || echo nothing)"; missing=1; }
			;;
		esac
	done < <(cat "${fragments[@]}")
	return $missing
}

configure_linux() {
	local out=$1
	make "${toolchain[@]}" O="$out" tinyconfig
	./scripts/kconfig/merge_config.sh -m -O "$out" "$out/.config" "${fragments[@]}"
	make "${toolchain[@]}" O="$out" olddefconfig
	make "${toolchain[@]}" O="$out" rustavailable ||
		die "Linux $LINUX_SERIES finds no usable Rust; the lines above say why"
	check_config "$out/.config"
}

build_linux() {
	cd "$src"
	[ -e "$1/.config-done" ] || configure_linux "$1"
	touch "$1/.config-done"
	make "${toolchain[@]}" O="$1" -j"$JOBS" bzImage modules
	test -e "$1/rust/libkernel.rmeta"
}

build_once linux-src "$(content_key "$(basename "$deb")")" "Linux source" unpack_linux
src=$built/src
link_to "$src" "$BUILD/linux/src"

key=$(content_key "$(basename "$deb")" "$src" "@${fragments[0]}" "@${fragments[1]}" \
	"@$ROOT/ci/setup-linux.sh" "$($compiler --version | head -n 1)" \
	"$(rustc --version)" "$BINDGEN_VERSION")
build_once "linux-$flavour" "$key" "Linux $flavour kernel" build_linux
link_to "$built" "$BUILD/linux/$flavour"
