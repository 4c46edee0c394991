#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: NV_SRC=DIR setup-nvidia-source.sh
#
# Makes build/nv/VERSION of a user's tree of NVIDIA's open kernel modules, for a version
# that has a series and no package. DIR is the whole tree, with src, or one with a compiled
# resource-manager core (kernel-open/nvidia/nv-kernel.o_binary). It stays as it is.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

[ -e "${NV_SRC:-}/kernel-open/conftest.sh" ] ||
	die "NV_SRC=${NV_SRC:-} holds no kernel-open/conftest.sh: it is not NVIDIA's open module source"
source=$(readlink -f "$NV_SRC")
version=$(driver_version "$source/kernel-open")
[[ " $NV_PORTED_VERSIONS " = *" $version "* ]] ||
	die "NV_SRC=$NV_SRC is version ${version:-unknown}; there are ported series for $NV_PORTED_VERSIONS"
[ -e "$source/kernel-open/nvidia/nv-kernel.o_binary" ] || [ -e "$source/src/nvidia/Makefile" ] ||
	die "no nvidia/nv-kernel.o_binary in $NV_SRC/kernel-open and no src/nvidia to build it from"
built_files=(-name '*.o' -o -name '*.ko' -o -name '*.cmd')

# Of what was built in the tree only the core is taken.
copy_source() {
	local tree=$1/tree
	mkdir -p "$tree"
	rsync -a --delete --exclude /.git --exclude _out --exclude '*.o' --exclude '*.ko' --exclude '*.cmd' \
		--exclude /kernel-open/conftest "$source/" "$tree/"
	[ ! -e "$tree/kernel-open/nvidia/nv-kernel.o_binary" ] || return 0
	make -C "$tree/src/nvidia" -j"$JOBS"
	cp "$tree/src/nvidia/_out/Linux_x86_64/nv-kernel.o" "$tree/kernel-open/nvidia/nv-kernel.o_binary"
	rm -rf "$tree/src/nvidia/_out"
}

source_digest() {
	(cd "$source" && find . -type f ! -path '*/_out/*' ! -path './.git/*' ! -path './kernel-open/conftest/*' \
		! \( "${built_files[@]}" \) -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
}

key=$(content_key "$(source_digest)" "@$ROOT/ci/setup-nvidia-source.sh" "$(gcc --version | head -n 1)")
build_once "nv-$version" "$key" "NVIDIA open kernel modules $version of $NV_SRC" copy_source
link_to "$built/tree" "$BUILD/nv/$version"
