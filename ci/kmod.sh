#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Builds nvidia.ko and nvidia-uvm.ko with gctgroup inside. Settings come from
# the environment, as `make kmod NAME=value` passes them:
#
#   NV_VERSION   which version of open-gpu-kernel-modules-patches/BASE (required)
#   NV_SRC       NVIDIA's source tree, or its kernel-open (default: build/nv/VERSION)
#   KDIR         the kernel's build tree (default: build/linux/lean)
#   GCT_STOCK    1: the driver without gctgroup; only the series' first patch,
#                which makes it build on Linux 7.2
#   GCT_KUNIT    1: with the KUnit suites of the glue
#   GCT_UVM      debug: nvidia-uvm.ko as NVIDIA's debug build, with its assertions
#                and its checks of the order of locks
#
# Results: build/kmod/VERSION/KERNEL/VARIANT/, KERNEL being lean, debug or the
# release of KDIR's kernel, VARIANT patched, stock or kunit, then -uvm-debug if GCT_UVM
# says so.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

version=${NV_VERSION:-}
versions=$("$ROOT/ci/series.py" versions | xargs)
[[ -n $version && " $versions " = *" $version "* ]] || die "NV_VERSION must be one of: $versions"
KDIR=${KDIR:-$BUILD/linux/lean}
NV_SRC=${NV_SRC:-$BUILD/nv/$version}
[ -e "$BUILD/env.sh" ] || die "there is no build/env.sh: run make setup"
. "$BUILD/env.sh"

. "$ROOT/ci/kmod-kernel.sh"
. "$ROOT/ci/compiler-cache.sh"

# --- What is built -----------------------------------------------------------

variant=patched
make_arguments=()
if [ "${GCT_STOCK:-}" = 1 ]; then
	variant=stock
elif [ "${GCT_KUNIT:-}" = 1 ]; then
	variant=kunit
	make_arguments+=(GCT_KUNIT=1)
fi
case ${GCT_UVM:-} in
'') ;;
debug)
	variant+=-uvm-debug
	make_arguments+=(UVM_BUILD_TYPE=debug)
	;;
*) die "GCT_UVM is debug or not set" ;;
esac

case $NV_SRC in
/*) ;;
*) NV_SRC=$PWD/$NV_SRC ;;
esac
kernel_open=$NV_SRC
[ -e "$NV_SRC/kernel-open/conftest.sh" ] && kernel_open=$NV_SRC/kernel-open
[ -e "$kernel_open/conftest.sh" ] ||
	die "NV_SRC=$NV_SRC holds no kernel-open/conftest.sh: it is not NVIDIA's open module source"
source_version=$(driver_version "$kernel_open")
[ "$source_version" = "$version" ] ||
	die "NV_SRC=$NV_SRC is version ${source_version:-unknown}, the patches are for $version"

kernel_name=$(kernel_name)
check_kernel "$variant"

# All variants of one kernel and driver have their own work tree.
work=$BUILD/work/$version/$kernel_name/$variant
output=$BUILD/kmod/$version/$kernel_name/$variant
mkdir -p "$work" "$output"
exec 8>"$work.lock"
flock 8

"$ROOT/ci/series.py" write "$version" "$work.series" "$kernel_open"
mapfile -t patches < <(sed "s,^,$work.series/," "$work.series/series")
[ "${GCT_STOCK:-}" != 1 ] || patches=("${patches[0]}")
# What lockdep cannot be told from outside; only where there is lockdep.
lockdep_patch=$ROOT/tests/qemu/lockdep/$version.patch
if [ "$(kernel_config LOCKDEP)" = y ] && [ -e "$lockdep_patch" ]; then
	patches+=("$lockdep_patch")
fi

# --- The source tree ---------------------------------------------------------

# The core comes with the tree, or is compiled from the full source beside it.
find_core() {
	core=$kernel_open/nvidia/nv-kernel.o_binary
	[ ! -e "$core" ] || return 0
	[ -e "$NV_SRC/src/nvidia/Makefile" ] ||
		die "no nvidia/nv-kernel.o_binary in $kernel_open and no src/nvidia to build it from"
	core=$BUILD/work/$version/core/src/nvidia/_out/Linux_x86_64/nv-kernel.o
	mkdir -p "$BUILD/work/$version/core"
	local core_lock
	exec {core_lock}>"$BUILD/work/$version/core.lock"
	flock "$core_lock"
	rsync -a --exclude _out "$NV_SRC/src" "$NV_SRC"/*.mk "$BUILD/work/$version/core/"
	step "resource-manager core of $NV_SRC" \
		make -C "$BUILD/work/$version/core/src/nvidia" -j"$JOBS"
	exec {core_lock}>&-
}

# Prepares the patched source beside the work tree and copies over only what
# differs, so that make sees what really changed.
stage() {
	local stage=$work.stage patch_file
	rm -rf "$stage"
	mkdir -p "$stage"
	rsync -a --exclude '*.o_binary' --exclude /nvidia-drm --exclude /nvidia-modeset \
		--exclude /nvidia-peermem --exclude '*.o' --exclude '*.cmd' --exclude '*.ko' \
		--exclude /conftest --exclude /debian "$kernel_open/" "$stage/"
	for patch_file in "${patches[@]}"; do
		patch --directory="$stage" --strip=1 --fuzz=0 --forward \
			--no-backup-if-mismatch --reject-file=- --input="$patch_file"
	done
	rsync -rlpc --delete --exclude '*.o' --exclude '*.o_binary' --exclude '*.cmd' --exclude '*.ko' \
		--exclude '*.mod' --exclude '*.mod.c' --exclude '*.d' --exclude /conftest --exclude /gct \
		--exclude /.stage-key --exclude /Module.symvers --exclude /modules.order \
		--exclude nv_compiler.h --exclude '.*' "$stage/" "$work/"
	rm -rf "$stage"
	ln -sfn "$core" "$work/nvidia/nv-kernel.o_binary"
	echo "$stage_key" >"$work/.stage-key"
}

# Our sources go in as copies with their times kept: objects then land in the
# work tree, and make still sees which file changed.
stage_gct() {
	if [ "$variant" = stock ] || [ ! -e "$ROOT/Kbuild" ]; then
		rm -rf "$work/gct"
		return
	fi
	mkdir -p "$work/gct"
	rsync -a --delete --prune-empty-dirs --include '*/' --include '*.rs' --include '*.c' \
		--include '*.h' --exclude '*' "$ROOT/rust/" "$work/gct/"
	cp -p "$ROOT/Kbuild" "$work/gct/Kbuild"
}

find_core
stage_key=$(content_key "$(readlink -f "$kernel_open")" "$core" \
	"$(stat -c %Y "$kernel_open/Kbuild")" "@$ROOT/ci/kmod.sh" "${patches[@]/#/@}")
if [ "$(cat "$work/.stage-key" 2>/dev/null)" != "$stage_key" ]; then
	step "$version $kernel_name $variant: source with ${#patches[@]} patches" stage
fi
stage_gct

# --- The build ---------------------------------------------------------------

run_make() {
	with_compiler_cache make -C "$work" -j"$JOBS" "$@" SYSSRC="$kernel_source" SYSOUT="$KDIR" \
		"${kernel_toolchain[@]}" "${make_arguments[@]}" \
		NV_EXCLUDE_KERNEL_MODULES="nvidia-drm nvidia-modeset nvidia-peermem"
}

# NVIDIA's conftest compiles some 400 probes against the kernel: a minute. The
# answers depend on the probes and the kernel only, so all variants share them.
conftest_key=$(content_key "$(kernel_identity)" "@$work/conftest.sh" "@$work/Kbuild" \
	"$(cat "$work/header-presence-tests.mk" 2>/dev/null || true)" \
	"$(cat "$work"/nvidia*/*.Kbuild | grep NV_CONFTEST)")
conftest_cache=$(kernel_store)/conftest/$conftest_key

restore_conftest() {
	[ "$(cat "$work/conftest/.key" 2>/dev/null)" != "$conftest_key" ] || return 0
	rm -rf "$work/conftest"
	[ -e "$conftest_cache/.key" ] || return 0
	cp -a "$conftest_cache" "$work/conftest"
	# One time for all: make then finds none older than another, nor than
	# the script that made them.
	find "$work/conftest" -exec touch -h -d "@$(date +%s)" {} +
}

save_conftest() {
	[ ! -e "$work/conftest/.key" ] || return 0
	echo "$conftest_key" >"$work/conftest/.key"
	[ ! -e "$conftest_cache" ] || return 0
	mkdir -p "$(dirname "$conftest_cache")"
	cp -a "$work/conftest" "$conftest_cache.new.$$"
	mv -T "$conftest_cache.new.$$" "$conftest_cache" || rm -rf "$conftest_cache.new.$$"
}

build_modules() {
	restore_conftest
	run_make modules
	save_conftest
	local module
	for module in nvidia.ko nvidia-uvm.ko; do
		cmp -s "$work/$module" "$output/$module" || cp "$work/$module" "$output/$module"
	done
}

step "$version $kernel_name $variant: nvidia.ko, nvidia-uvm.ko" build_modules
note "$output"
