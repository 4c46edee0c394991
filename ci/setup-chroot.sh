#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes the root file systems of Debian 12 in which packages are made and tried, from the server
# that this machine uses: build/chroot/make with debhelper, lintian and systemd's checks,
# build/chroot/clean with nothing but apt, build/chroot/dkms with what a machine has whose
# driver dkms builds, and build/chroot/slurm with Slurm's daemons. build/chroot/slurm-new is a
# Debian 13 with its newer Slurm.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/apt.sh"

MAKE_PACKAGES=(debhelper dpkg-dev lintian systemd)
DKMS_PACKAGES=(dkms libelf1)
SLURM_PACKAGES=(iproute2 mount munge slurm-client slurmctld slurmd)

bootstrap() {
	mmdebstrap --mode=root --variant=apt --components=main "$@" bookworm "$dir/root" "$(debian_mirror)"
}

# make_root DIR PACKAGE...
make_root() {
	local dir=$1
	shift
	rm -rf "$dir/root"
	bootstrap --include="$(IFS=,; echo "$*")"
	chroot "$dir/root" apt-get --version
}

# Makes a Debian 13 in place of a Debian 12.
make_newer_root() {
	local dir=$1
	shift
	rm -rf "$dir/root"
	mmdebstrap --mode=root --variant=apt --components=main --include="$(IFS=,; echo "$*")" \
		trixie "$dir/root" "$(debian_mirror)"
	chroot "$dir/root" apt-get --version
}

# chroot_of NAME DESCRIPTION PACKAGE...: the versions of the packages are those of the day on
# which the store first had them.
chroot_of() {
	local name=$1 what=$2
	shift 2
	build_once "chroot-$name" "$(content_key "$*" "$(declare -f bootstrap make_root)")" "$what" make_root "$@"
	link_to "$built/root" "$BUILD/chroot/$name"
}

chroot_of make "Debian 12 with debhelper and lintian" "${MAKE_PACKAGES[@]}"
chroot_of clean "Debian 12, clean" apt
chroot_of dkms "Debian 12 with dkms" "${DKMS_PACKAGES[@]}"
chroot_of slurm "Debian 12 with Slurm" "${SLURM_PACKAGES[@]}"

build_once chroot-slurm-new "$(content_key "${SLURM_PACKAGES[*]}" "$(declare -f make_newer_root)")" \
	"Debian 13 with Slurm" make_newer_root "${SLURM_PACKAGES[@]}"
link_to "$built/root" "$BUILD/chroot/slurm-new"
