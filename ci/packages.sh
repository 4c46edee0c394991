#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: packages.sh [DIR [PROFILE]]
#
# Makes the Debian packages gctgroup-tools and gctgroup-dkms in DIR, else build/packages, with the
# programs in cargo's PROFILE, else release. Needs root, for the root file system in which Debian's
# tools run. VERSION overrides that of ci/version.sh, and XZ_LEVEL=0 packs in a hurry.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/chroot.sh"

OUT=${1:-$BUILD/packages}
PROFILE=${2:-release}
version=${VERSION:-$("$ROOT/ci/version.sh")}
source=$OUT/source
date=$(git -C "$ROOT" log -1 --format=%ct 2>/dev/null || date +%s)
can_chroot || die "making packages needs root, and to be allowed to mount"
[ -e "$BUILD/chroot/make" ] || "$ROOT/ci/setup-chroot.sh"
mkdir -p "$OUT"

# What changed says CHANGELOG.md, which the packages have beside this.
debian_changelog() {
	printf 'gctgroup (%s-1) unstable; urgency=medium\n\n  * %s\n\n' "$version" "CHANGELOG.md says what changed."
	printf ' -- gctgroup maintainers <maintainers@gctgroup.dev>  %s\n' "$(LC_ALL=C date -uRd "@$date")"
}

debian_copyright() {
	cat "$ROOT/packaging/debian/copyright.head"
	sed -n '3,$p' "$ROOT/LICENSES/MIT.txt" | sed 's/^$/./; s/^/ /'
}

stage() {
	local driver
	rm -rf "$source"
	mkdir -p "$source"/{debian,ci,userspace/gct-exporter,patches}
	cp "$ROOT"/ci/{install,lib,kmod-kernel}.sh "$source/ci"
	cp -r "$ROOT"/{packaging,CHANGELOG.md,Kbuild} "$source"
	cp "$ROOT"/userspace/gct-exporter/{alerts.yml,dashboard.json} "$source/userspace/gct-exporter"
	rsync -a --prune-empty-dirs --exclude tests --exclude 'tests.rs' --include '*/' --include '*.rs' \
		--include '*.c' --include '*.h' --exclude '*' "$ROOT/rust/" "$source/rust/"
	for driver in $("$ROOT/ci/series.py" versions); do
		"$ROOT/ci/series.py" write "$driver" "$source/patches/$driver"
	done
	cp "$ROOT"/packaging/debian/* "$source/debian"
	sed -i "s/@VERSION@/$version/g" "$source"/debian/*.{postinst,prerm}
	debian_changelog >"$source/debian/changelog"
	debian_copyright >"$source/debian/copyright"
	SOURCE_DATE_EPOCH=$date "$ROOT/ci/sbom.sh" "$source"
	cp -r "$OUT/programs" "$source/programs"
}

pack() {
	rm -f "$OUT"/*.deb "$OUT"/*.changes "$OUT"/*.buildinfo
	in_chroot make "$OUT" "cd /gct/source && XZ_LEVEL=${XZ_LEVEL:-} GCT_CACHE= dpkg-buildpackage -b -d -us -uc"
}

"$ROOT/ci/user.sh" "$OUT/programs" "$PROFILE"
step "packages of $version: source" stage
step "packages of $version" pack
note "$(cd "$OUT" && ls -sh --block-size=1K *.deb | xargs)"
