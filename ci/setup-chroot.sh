#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes the root file systems of Debian 12 in which packages are made and tried, from the server
# that this machine uses: build/chroot/make with debhelper, lintian and systemd's checks,
# build/chroot/clean with what gctgroup-tools depends on, build/chroot/dkms with what a machine has
# whose driver dkms builds, and build/chroot/slurm with Slurm's daemons. build/chroot/slurm-new is a
# Debian 13 with its newer Slurm, and build/chroot/older a Debian 11, if the server still has it.
# build/chroot/guide-RELEASE are clean Debians of other releases, for `make test-long`.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/apt.sh"
. "$ROOT/ci/chroot.sh"

# What gctgroup-tools depends on.
CLEAN_PACKAGES=(apt systemd-standalone-sysusers)
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

# Makes a Debian of another release in place of a Debian 12. What a server says of one that still
# moves is valid for a week, also where it keeps the release of a day; its signature is checked.
make_other_root() {
	local dir=$1 release=$2
	shift 2
	rm -rf "$dir/root"
	mmdebstrap --mode=root --variant=apt --components=main --include="$(IFS=,; echo "$*")" \
		--aptopt='Acquire::Check-Valid-Until "false"' "$release" "$dir/root" "$(debian_mirror)"
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
chroot_of clean "Debian 12, clean" "${CLEAN_PACKAGES[@]}"
chroot_of dkms "Debian 12 with dkms" "${DKMS_PACKAGES[@]}"
chroot_of slurm "Debian 12 with Slurm" "${SLURM_PACKAGES[@]}" "${CLEAN_PACKAGES[@]}"

# other_chroot_of NAME DESCRIPTION RELEASE PACKAGE...
other_chroot_of() {
	local name=$1 what=$2
	shift 2
	build_once "chroot-$name" "$(content_key "$*" "$(declare -f make_other_root)")" "$what" make_other_root "$@"
	link_to "$built/root" "$BUILD/chroot/$name"
}

other_chroot_of slurm-new "Debian 13 with Slurm" trixie "${SLURM_PACKAGES[@]}"
# Its time ends, and then servers drop it.
(other_chroot_of older "Debian 11" bullseye musl) || note "Debian 11 cannot be had: its tests are left out"
if long; then
	for release in "${GUIDE_RELEASES[@]}"; do
		(other_chroot_of guide-$release "Debian $release" $release "${CLEAN_PACKAGES[@]}") ||
			note "Debian $release cannot be had: its tests are left out"
	done
fi
