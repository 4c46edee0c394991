#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes the Debian packages of an older and of this version, checks them with lintian, checks the
# units with systemd-analyze, and installs, upgrades and removes them in a clean Debian 12
# (tests/packages). Needs root.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/chroot.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/machine.sh"

job=packages
rm -f "$RESULTS/$job"
can_chroot || die "the job $job makes namespaces and mounts: run it as root"
"$ROOT/ci/setup-chroot.sh"
made=$BUILD/packages-test
mkdir -p "$made/tests"

# The programs are those of the host job, in the profile of the tests.
make_both() {
	local version
	for version in 0.0.9 "$("$ROOT/ci/version.sh")"; do
		VERSION=$version XZ_LEVEL=0 "$ROOT/ci/packages.sh" "$made" dev || return
		rm -rf "$made/$version"
		mkdir "$made/$version"
		mv "$made"/*.{deb,changes,buildinfo} "$made/$version"
	done
	rm -rf "$made/new" "$made/old"
	mv "$made/0.0.9" "$made/old"
	mv "$made/$version" "$made/new"
}

# Versions and names agree: of the programs, of the packages, of the changelog.
version_is_one() {
	local version release
	version=$("$ROOT/ci/version.sh")
	release=${version%%~*}
	grep -m1 '^## ' "$ROOT/CHANGELOG.md" | grep -F "## $release" &&
		"$made/programs/gctctl" --version | grep -xF "gctctl $release" &&
		dpkg-deb -f "$made"/new/gctgroup-tools_*.deb Version | grep -xF "$version-1" &&
		dpkg --compare-versions "$release~git20261123.010000.0" lt "$release" &&
		dpkg --compare-versions 0.0.9-1 lt "$version-1"
}

is_lintian_clean() {
	in_chroot make "$made" \
		'lintian --allow-root --info --pedantic --fail-on error,warning,info,pedantic /gct/new/*.changes'
}

# What a unit may do, as systemd counts it: 0 is nothing, 10 everything.
units_are_hardened() {
	in_chroot make "$made" '
		set -e
		dpkg-deb --fsys-tarfile /gct/new/gctgroup-tools_*.deb | tar -C / -x --keep-directory-symlink
		cd /lib/systemd/system
		for unit in gctd gctgroup-groups gctgroup-selftest gct-exporter gct-device-plugin; do
			systemd-analyze verify --man=no $unit.service
			systemd-analyze security --offline=true --threshold=25 $unit.service
		done'
}

# Each drop-in of the examples, beside its unit and all together. systemd-analyze says what it does
# not understand, and exits with 0.
drop_ins_are_taken() {
	in_chroot make "$made" '
		set -e
		dpkg-deb --fsys-tarfile /gct/new/gctgroup-tools_*.deb | tar -C / -x --keep-directory-symlink
		for conf in /usr/share/doc/gctgroup-tools/examples/*.conf; do
			name=${conf##*/}
			unit=${name%-*}.service
			mkdir -p /etc/systemd/system/$unit.d
			cp "$conf" /etc/systemd/system/$unit.d
			said=$(systemd-analyze verify --man=no $unit 2>&1)
			[ -z "$said" ] || { echo "$name: $said"; exit 1; }
			echo "$name"
		done' | sort | diff - <(cd "$ROOT/packaging/systemd" && ls -- *.conf | sort)
}

# What make install installs below a folder, make uninstall takes away.
installs_without_packages() {
	local root
	root=$(mktemp -d)
	export PROGRAMS=$made/programs DESTDIR=$root PREFIX=/opt/gct
	make -s -C "$ROOT" install || return
	"$root/opt/gct/bin/gctctl" --version
	grep -x 'ExecStart=/opt/gct/sbin/gctd $GCTD_OPTIONS' "$root/opt/gct/lib/systemd/system/gctd.service" &&
		[ -e "$root/opt/gct/share/man/man1/gctctl-run.1" ] || return
	make -s -C "$ROOT" uninstall
	find "$root" ! -type d | grep . && return 1
	rm -r "$root"
}

# Below a prefix where systemd does not look gctd has its user, too.
installs_user() {
	in_chroot clean "$made" "GCT_CACHE=/tmp PROGRAMS=/gct/programs PREFIX=/opt/gct '$ROOT/ci/install.sh' install &&
		id -nG _gctd | grep -w video" "$ROOT"
}

# The components of the document are those of Cargo.lock, with their checksums.
sbom_is_complete() {
	local json=$made/source/sbom.spdx.json name
	for name in clap tokio rustix fuser; do
		jq -e --arg name $name '.packages[] | select(.name == $name) |
			select(.checksums[0].checksumValue and .licenseDeclared)' "$json" || return
	done
	jq -e '(.packages | length) == (.relationships | length)' "$json" &&
		grep -F 'Permission is hereby granted' "$made/source/third-party-licences"
}

# run_script ROOT FILE [BIND...]: runs a script in a root file system and counts its lines.
run_script() {
	local root=$1 script=$2
	shift 2
	printf '==> %s in %s\n' "${script#"$ROOT/"}" "$root"
	check_script $job "$BUILD/log/$job-$root-$(basename "$script").log" \
		in_chroot "$root" "$made" "$(cat "$ROOT/tests/packages/lib.sh" "$script")" "$@"
}

# install_machine_script ROOT NAME
install_machine_script() {
	cat "$ROOT/tests/packages/machine.sh" "$ROOT/tests/packages/$2-machine.sh" >"$1/test.sh"
	chmod 755 "$1/test.sh"
}

# Makes a Debian with Slurm, the hooks of the package and its gctctl, for the machine.
make_slurm_root() {
	local root=$1
	rm -rf "$root"
	mkdir -p "$root"/{proc,sys,dev}
	tar -C "$BUILD/chroot/slurm/" --exclude './proc/*' --exclude './sys/*' --exclude './dev/*' \
		--exclude './usr/share/*' -cf - . | tar -C "$root" -xf -
	dpkg-deb --fsys-tarfile "$made"/new/gctgroup-tools_*.deb |
		tar -C "$root" -x --keep-directory-symlink ./usr/bin/gctctl ./usr/lib/gctgroup/slurm
	install --strip "$GUEST_BIN/rm-pod" "$root/usr/bin"
	install_machine_script "$root" slurm
}

# Makes a Debian with systemd, both packages and programs that play tenants, for the machine.
make_systemd_root() {
	local root=$1
	rm -rf "$root"
	mkdir -p "$root"/{proc,sys,dev}
	tar -C "$BUILD/chroot/make/" --exclude './proc/*' --exclude './sys/*' --exclude './dev/*' \
		--exclude './usr/share/*' --exclude './usr/include' --exclude './usr/lib/gcc*' --exclude '*/perl/*' \
		--exclude '*/perl5' --exclude '*/python3*' --exclude './var/cache/*' --exclude './var/lib/apt/*' -cf - . |
		tar -C "$root" -xf -
	mkdir "$root/debs"
	cp "$made"/old/gctgroup-tools_*.deb "$root/debs/old.deb"
	cp "$made"/new/gctgroup-tools_*.deb "$root/debs/new.deb"
	install -m 755 "$ROOT/tests/packages/gct-load" "$root/debs"
	install --strip "$GUEST_BIN/rm-pod" "$made/programs-of-tests/tenant" "$root/usr/bin"
	install_machine_script "$root" systemd
}

# What a kernel's headers have of what the checks look at.
stage_kernel() {
	local kernel=$made/kernel lean=$BUILD/linux/lean
	rm -rf "$kernel"
	mkdir -p "$kernel/include/generated" "$kernel/include/config" "$kernel/rust"
	cp "$lean/.config" "$lean/Makefile" "$lean/Module.symvers" "$kernel"
	cp "$lean/include/generated/autoconf.h" "$kernel/include/generated"
	cp "$lean/include/config/kernel.release" "$kernel/include/config"
	touch "$kernel/rust/libcore.rmeta" "$kernel/rust/libkernel.rmeta"
}

check $job "packages of two versions are made" make_both
check $job "programs, packages and changelog have one version" version_is_one
check $job "lintian finds nothing" is_lintian_clean
check $job "systemd takes the units, and they may do little" units_are_hardened
check $job "systemd takes the drop-ins of the examples" drop_ins_are_taken
check $job "the list of components is complete" sbom_is_complete
check $job "make install and make uninstall, elsewhere" installs_without_packages
check $job "make install makes gctd's user" installs_user
run_script clean "$ROOT/tests/packages/tools.sh"
cp "$ROOT/gctgroup-docs/guide.md" "$made"
run_script clean "$ROOT/tests/packages/guide.sh"
for release in "${GUIDE_RELEASES[@]}"; do
	! long || [ ! -e "$BUILD/chroot/guide-$release" ] || run_script guide-$release "$ROOT/tests/packages/guide.sh"
done
[ ! -e "$BUILD/chroot/older" ] || run_script older "$ROOT/tests/packages/older.sh"
if can_run_kubernetes; then
	# The jobs' cgroups are below one of this run.
	need_programs "$made/programs-of-tests"
	run_script slurm "$ROOT/tests/packages/slurm.sh"
	run_script slurm-new "$ROOT/tests/packages/slurm.sh"
else
	printf 'the test of Slurm makes cgroups, which this machine refuses: left out\n'
fi
stage_kernel
run_script dkms "$ROOT/tests/packages/dkms.sh"
if long; then
	# A real kernel, driver and compiler, all at their own places.
	for version in $NV_DEBIAN_VERSION $NV_PORTED_VERSIONS; do
		[ -d "$BUILD/nv/$version" ] || continue
		places=("$(readlink -f "$BUILD/linux/lean")" "$(readlink -f "$BUILD/nv/$version")"
			"$(rustc --print sysroot)")
		printf '%s\n' "${places[@]}" >"$made/places"
		run_script dkms "$ROOT/tests/packages/dkms-build.sh" "${places[@]}" "$(readlink -f "$BUILD/linux/src")"
	done
	# Slurm's own cgroups, and the kernel mode.
	need_machine
	step "Slurm for the machine" make_slurm_root "$made/slurm"
	run_machine $job slurm "$made/slurm"
	# systemd, as process 1, and the units.
	need_programs "$made/programs-of-tests"
	step "systemd for the machine" make_systemd_root "$made/systemd"
	run_machine $job systemd "$made/systemd"
fi
finish $job
