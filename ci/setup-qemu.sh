#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Unpacks a QEMU with the vfio-user client (Debian 12's own is too old), and all
# that it depends on, and makes build/qemu/qemu-system-x86_64 run it through its
# own loader and libraries. Nothing of it is installed.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/apt.sh"

QEMU_PACKAGE=qemu-system-x86

qemu_apt() {
	private_apt apt-get -t trixie-backports --no-install-recommends -y "$@" "$QEMU_PACKAGE"
}

# Lines "file name" of QEMU and everything below it.
closure() {
	qemu_apt --print-uris install | sed -n "s/^'[^']*' \([^ ]*\.deb\) .*/\1/p" | sort
}

unpack_qemu() {
	local dir=$1 deb archives=$APT_HOME/cache/archives
	mkdir -p "$DEB_STORE/qemu"
	for deb in "${files[@]}"; do
		[ ! -e "$DEB_STORE/qemu/$deb" ] || cp -n "$DEB_STORE/qemu/$deb" "$archives/"
	done
	qemu_apt --download-only install
	rm -rf "$dir/root"
	mkdir "$dir/root"
	for deb in "${files[@]}"; do
		dpkg-deb -x "$archives/$deb" "$dir/root"
		mv "$archives/$deb" "$DEB_STORE/qemu/"
	done
	cat >"$dir/qemu-system-x86_64" <<-'WRAPPER'
		#!/bin/sh
		# Written by ci/setup-qemu.sh.
		root=$(dirname "$(readlink -f "$0")")/root
		lib=$root/usr/lib/x86_64-linux-gnu
		export QEMU_MODULE_DIR="$lib/qemu"
		exec "$root/usr/lib64/ld-linux-x86-64.so.2" \
			--library-path "$lib:$lib/pulseaudio" \
			"$root/usr/bin/qemu-system-x86_64" \
			-L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
	WRAPPER
	chmod +x "$dir/qemu-system-x86_64"
	"$dir/qemu-system-x86_64" -device help | grep -q '"vfio-user-pci"' ||
		die "$("$dir/qemu-system-x86_64" --version | head -n 1) has no vfio-user-pci device"
}

describe() {
	note "$("$BUILD/qemu/qemu-system-x86_64" --version | head -n 1)"
}

if [ -e "$BUILD/qemu/.complete" ]; then
	printf '==> QEMU with vfio-user\n'
	note "already there ($(readlink "$BUILD/qemu"))"
	exit 0
fi

apt_refresh
if [ "$apt_fresh" = yes ]; then
	mapfile -t files < <(closure)
	[ ${#files[@]} -gt 0 ] || die "Debian package $QEMU_PACKAGE (trixie-backports) has no installable candidate"
	key=$(content_key "${files[@]}" "@$ROOT/ci/setup-qemu.sh")
	build_once qemu "$key" "QEMU with vfio-user (${#files[@]} packages)" unpack_qemu
else
	built=$(dirname "$(ls -t "$STORE"/qemu/*/.complete 2>/dev/null | head -n 1)" 2>/dev/null || true)
	[ -e "$built/.complete" ] ||
		die "Debian package $QEMU_PACKAGE cannot be downloaded; see $BUILD/log/apt-update.log"
fi
link_to "$built" "$BUILD/qemu"
describe
