#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-uvm.sh [VERSION...]
#
# Runs those of NVIDIA's built-in UVM tests that need no GPU (tests/uvm) on the
# patched nvidia-uvm.ko and on the stock one (only the patch that makes it build
# on this Linux), and for `make test-long` on the patched one as a debug build, and with
# the debug kernel.
# All must give the same results, test by test.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

JOB=uvm
DOCUMENT=$ROOT/gctgroup-docs/uvm-tests.md
# Long enough for a cold page cache and for KASAN under emulation.
SECONDS_MAX=1500

# Each run is a kernel and a build of the modules.
RUNS='lean/stock lean/patched'
! long || RUNS+=' lean/patched-uvm-debug debug/patched'

build_program() {
	make -C "$ROOT/tests/uvm" -j"$JOBS" NV="$BUILD/nv/$1/kernel-open" OUT="$BUILD/uvm/$1"
}

build_modules() {
	local kernel=${2%/*} stock=0 uvm=''
	[ "${2#*/}" != stock ] || stock=1
	[ "${2#*/}" != patched-uvm-debug ] || uvm=debug
	NV_VERSION=$1 GCT_STOCK=$stock GCT_UVM=$uvm KDIR=$BUILD/linux/$kernel "$ROOT/ci/kmod.sh"
}

# Every built-in test of the driver's header is run or excused, and is named in
# the document. The program's lists say the first, this the second.
test_completeness() {
	local name missing=0
	"$BUILD/uvm/$1/uvm-tests" --list >"$BUILD/uvm/$1/list" || {
		grep '^unknown' "$BUILD/uvm/$1/list"
		return 1
	}
	while read -r name; do
		grep -qw "$name" "$DOCUMENT" || {
			echo "$name is missing in $DOCUMENT"
			missing=1
		}
	done < <(sed -E 's/^(run|not run|on a GPU) +([A-Z0-9_]+).*/\2/' "$BUILD/uvm/$1/list")
	return $missing
}

run_tests() {
	local version=$1 kernel=${2%/*} variant=${2#*/}
	"$GCT_VM" run --build "$BUILD" --nv "$version" --kernel "$kernel" --variant "$variant" --gpus 1 \
		--file "$BUILD/uvm/$version/uvm-tests" --script "$ROOT/tests/uvm/vm.sh" \
		--ktap --quiet --timeout $SECONDS_MAX --results "$RESULTS/$JOB" \
		--log "$BUILD/uvm/$version/$kernel-$variant.log"
}

# What must be equal: the result of each test by its name, and the values that
# depend on nothing but parameters and kernel.
outcome() {
	sed -nE 's/^ +\| (ok|not ok) [0-9]+ ([A-Z0-9_]+)$/\1 \2/p; s/^ +\| (# value .*)/\1/p' \
		"$BUILD/uvm/$1/${2/\//-}.log"
}

names_only() {
	grep -v '^# value'
}

test_same_as_stock() {
	diff -u --label stock --label patched \
		<(outcome "$1" lean/stock) <(outcome "$1" lean/patched)
}

# Another configuration of the kernel or a debug build may change a value, never a result.
test_same_results() {
	diff -u --label lean/patched --label "$2" \
		<(outcome "$1" lean/patched | names_only) \
		<(outcome "$1" "$2" | names_only)
}

# Says how much the comparison can show: the series may leave the module alone.
note_module() {
	local modules=$BUILD/kmod/$1/lean
	if cmp -s "$modules/stock/nvidia-uvm.ko" "$modules/patched/nvidia-uvm.ko"; then
		note "nvidia-uvm.ko is the stock one byte for byte; only nvidia.ko differs"
	else
		note "nvidia-uvm.ko differs from the stock one"
	fi
}

# An empty comparison compares nothing.
test_all_ran() {
	local planned ran
	planned=$(grep -c '^run ' "$BUILD/uvm/$1/list")
	ran=$(outcome "$1" lean/patched | names_only | wc -l)
	echo "$ran results of $planned tests"
	[ "$planned" -gt 0 ] && [ "$ran" -eq "$planned" ]
}

rm -f "$RESULTS/$JOB"
mkdir -p "$RESULTS"
need_source "${NV_VERSION:-}"
need_tools
for version in ${*:-$(tested_versions)}; do
	step "$version: UVM test program" build_program "$version"
	check $JOB "$version: every built-in test is run or excused, and documented" \
		test_completeness "$version"
	# The logs of an earlier run must not stand in for one that did not start.
	rm -f "$BUILD/uvm/$version"/*.log
	for run in $RUNS; do
		build_modules "$version" "$run"
		printf '==> %s: UVM tests, %s\n' "$version" "$run"
		run_tests "$version" "$run" || true
	done
	check $JOB "$version: all tests gave a result" test_all_ran "$version"
	check $JOB "$version: the patched module does what the stock one does" \
		test_same_as_stock "$version"
	for run in $RUNS; do
		case $run in
		*debug*) check $JOB "$version: $run gives the same results" test_same_results "$version" "$run" ;;
		esac
	done
	note_module "$version"
done
finish $JOB
