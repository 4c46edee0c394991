#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-selftests.sh [VERSION...]
#
# Runs tests/selftests in virtual machines: all of them on the lean kernel with two
# GPUs, for one driver version also on the debug kernel and through /dev/gctgroup in a
# machine without debugfs, those of the tree's form with eight GPUs, and the KUnit
# suites. `make test-long` adds the debug kernel for every version, with the longest tests,
# one GPU, and /dev/gctgroup under lockdown. A report of lockdep, KASAN or kmemleak fails
# the machine.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

JOB=selftests
# KASAN and lockdep under emulation take ten times as long as the lean kernel.
LEAN_SECONDS_MAX=600
DEBUG_SECONDS_MAX=1500
# They take three quarters of the time of the debug kernel. Of the tests that unload the modules
# the last stays, which looks for leaks.
LONG_ON_DEBUG=storms.,races.a_thousand_groups,members.pid_reuse,memory.create_and_remove
LONG_ON_DEBUG+=,bounds.dead_opener,bounds.deep,unload.refused,unload.again,unload.open,unload.with
LONG_ON_DEBUG+=,door.shows_what_debugfs_shows,conformance.limits,input.

# What a second version of the driver does not change.
LONG_ON_OTHERS=storms.,races.a_thousand_groups,unload.again,members.pid_reuse

versions=("$@")
[ ${#versions[@]} -gt 0 ] || read -ra versions <<<"$(tested_versions)"
need_source "${NV_VERSION:-}"

rm -f "$RESULTS/$JOB"
mkdir -p "$BUILD/selftests"
need_tools
need_guest_programs gct-selftest

# machine VERSION KERNEL VARIANT GPUS SECONDS SCRIPT [FILTER [ARGUMENT...]]
machine() {
	local version=$1 kernel=$2 variant=$3 gpus=$4 seconds=$5 script=$6 filter=${7:-}
	local name=$version-$kernel-$variant-$gpus-${script%.sh}
	shift $(($# < 7 ? $# : 7))
	printf '%s\n' "$filter" >"$BUILD/selftests/$name.filter"
	printf '==> driver %s, %s kernel, %s, %s GPUs%s\n' \
		"$version" "$kernel" "$variant" "$gpus" "${filter:+, $filter}"
	"$GCT_VM" run --build "$BUILD" --kernel "$kernel" --nv "$version" --variant "$variant" \
		--gpus "$gpus" --file "$GUEST_BIN/gct-selftest" \
		"$BUILD/selftests/$name.filter:/test/filter" \
		--script "$ROOT/tests/selftests/$script" --ktap --quiet --timeout "$seconds" \
		--log "$BUILD/selftests/$name.log" --results "$RESULTS/$JOB" "$@" || true
}

for version in "${versions[@]}"; do
	NV_VERSION=$version "$ROOT/ci/kmod.sh"
	if [ "$version" = "${versions[0]}" ] || long; then
		machine "$version" lean patched 2 $LEAN_SECONDS_MAX vm.sh
		machine "$version" lean patched 8 $LEAN_SECONDS_MAX vm.sh conformance
	else
		machine "$version" lean patched 2 $LEAN_SECONDS_MAX vm.sh "!$LONG_ON_OTHERS"
		continue
	fi
	! long || machine "$version" lean patched 1 $LEAN_SECONDS_MAX vm.sh conformance
	machine "$version" lean patched 2 $LEAN_SECONDS_MAX door.sh \
		"$(long || echo conformance.,input.,door.,thousand,unload.refused)" --append debugfs=off
	machine "$version" lean patched 0 $LEAN_SECONDS_MAX without-gpu.sh
	NV_VERSION=$version KDIR=$BUILD/linux/debug "$ROOT/ci/kmod.sh"
	machine "$version" debug patched 2 $DEBUG_SECONDS_MAX vm.sh "$(long || echo "!$LONG_ON_DEBUG")"
	! long || machine "$version" debug patched 0 $DEBUG_SECONDS_MAX without-gpu.sh
done

# The suites are the same whatever the driver, and so is what lockdown does.
version=${versions[0]}
if long; then
	"$ROOT/ci/setup-linux-lockdown.sh"
	NV_VERSION=$version KDIR=$BUILD/linux/lockdown "$ROOT/ci/kmod.sh"
	machine "$version" lockdown patched 2 $LEAN_SECONDS_MAX door.sh '!unload.'
fi
NV_VERSION=$version GCT_KUNIT=1 "$ROOT/ci/kmod.sh"
machine "$version" lean kunit 1 $LEAN_SECONDS_MAX kunit.sh

finish $JOB
