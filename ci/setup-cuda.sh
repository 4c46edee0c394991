#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes build/cuda/root.tar, the root file system of the job `cuda`: NVIDIA's libcuda, NVML,
# nvidia-smi, compiler of PTX and MPS from Debian's non-free, with the C library that they need.
# They are not free software: nothing of them is installed, committed or packaged. An empty
# GCT_NONFREE= leaves out the packages, the job, and a part of the demo.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/apt.sh"
APT_HOME=$BUILD/apt-nonfree

DRIVER_PACKAGES=(libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1 nvidia-cuda-mps nvidia-smi)
LIBRARY_PACKAGES=(libc6 libgcc-s1)

apt_sources() {
	printf '%s\n' "deb $1 bookworm main non-free"
}

unpack_cuda() {
	local dir=$1 version package lib=usr/lib/x86_64-linux-gnu
	cd "$dir"
	rm -rf unpacked root ./*.deb
	version=$(private_apt apt-cache madison libcuda1 | awk -v prefix="$NV_SOURCE_VERSION-" \
		'index($3, prefix) == 1 { print $3; exit }')
	[ -n "$version" ] || die "$(deb_offer libcuda1); $NV_SOURCE_VERSION is needed"
	private_apt apt-get download "${DRIVER_PACKAGES[@]/%/=$version}" "${LIBRARY_PACKAGES[@]}"
	mkdir -p unpacked root/lib64 root/usr/bin root/lib/x86_64-linux-gnu
	for package in ./*.deb; do
		dpkg-deb -x "$package" unpacked
	done
	cp unpacked/lib/x86_64-linux-gnu/{ld-linux-x86-64.so.2,libc.so.6,libm.so.6,libdl.so.2,libpthread.so.0,librt.so.1,libgcc_s.so.1} \
		root/lib/x86_64-linux-gnu
	ln -s /lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 root/lib64
	cp -a "unpacked/$lib"/nvidia/current/*.so* root/lib/x86_64-linux-gnu
	cp unpacked/usr/lib/nvidia/current/nvidia-smi unpacked/usr/bin/nvidia-cuda-mps-control \
		unpacked/usr/sbin/nvidia-cuda-mps-server root/usr/bin
	tar --owner=0 --group=0 -C root -cf root.tar .
	rm -r unpacked root ./*.deb
}

[ -n "${GCT_NONFREE-yes}" ] || {
	printf "==> NVIDIA's libcuda and tools %s\n" "$NV_SOURCE_VERSION"
	note "left out: GCT_NONFREE is empty"
	rm -f "$BUILD/cuda"
	exit
}
dir=$(store_dir cuda "$(content_key "$NV_SOURCE_VERSION" "$(declare -f apt_sources unpack_cuda)" \
	"${DRIVER_PACKAGES[*]} ${LIBRARY_PACKAGES[*]}")")
[ -e "$dir/.complete" ] || apt_refresh
build_once cuda "$(basename "$dir")" "NVIDIA's libcuda and tools $NV_SOURCE_VERSION, not free software" unpack_cuda
link_to "$built" "$BUILD/cuda"
