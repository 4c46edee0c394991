#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: setup-nvidia.sh VERSION
#
# Makes build/nv/VERSION the pristine tree of NVIDIA's open kernel modules, with
# the resource-manager core (the part that does not depend on the kernel) as
# kernel-open/nvidia/nv-kernel.o_binary.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

version=${1:?usage: setup-nvidia.sh VERSION}

# The full source: the core is compiled here, once.
unpack_full_source() {
	local dir=$1 tarball=$2
	if [ ! -e "$dir/tree/.unpacked" ]; then
		rm -rf "$dir/tree"
		mkdir "$dir/tree"
		tar x --strip-components=1 -C "$dir/tree" -f "$tarball"
		touch "$dir/tree/.unpacked"
	fi
	make -C "$dir/tree/src/nvidia" -j"$JOBS"
	cp "$dir/tree/src/nvidia/_out/Linux_x86_64/nv-kernel.o" \
		"$dir/tree/kernel-open/nvidia/nv-kernel.o_binary"
	rm -rf "$dir/tree/src/nvidia/_out" "$dir/tree/.unpacked"
}

# Debian's package: kernel-open with a prebuilt core, whose 200 MB of debug
# information would make each link of nvidia.ko slow.
unpack_debian() {
	local dir=$1 deb=$2
	rm -rf "$dir/tree"
	mkdir -p "$dir/tree/kernel-open"
	dpkg-deb --fsys-tarfile "$deb" |
		tar x -O ./usr/src/nvidia-open-kernel.tar.xz |
		xz -T2 -dc | tar x --strip-components=2 -C "$dir/tree/kernel-open"
	objcopy -g "$dir/tree/kernel-open/nvidia/nv-kernel.o_binary"
}

case $version in
"$NV_SOURCE_VERSION")
	archive=$(readlink -f "$BUILD/debs/nvidia-open-gpu-kernel-modules.orig.tar.xz")
	unpack=unpack_full_source
	;;
"$NV_DEBIAN_VERSION")
	archive=$(readlink -f "$BUILD/debs/nvidia-open-kernel-source.deb")
	unpack=unpack_debian
	;;
*) die "NVIDIA version $version is not one of: $NV_VERSIONS" ;;
esac

key=$(content_key "$(basename "$archive")" "@$ROOT/ci/setup-nvidia.sh" "$(gcc --version | head -n 1)")
build_once "nv-$version" "$key" "NVIDIA open kernel modules $version" "$unpack" "$archive"
link_to "$built/tree" "$BUILD/nv/$version"
