#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-gpu.sh [KERNEL/VARIANT...]
#
# The real driver on the software GPU: stock, and patched with nvidia-uvm.ko as a debug
# build, whose assertions none may violate. `make test-long` adds the release build, and
# the debug kernel. The driver initialises two GPUs and lets them go, again and again, and
# NVIDIA's own UVM tests that need a GPU pass (tests/uvm), each of them on the patched
# modules as on the stock ones. On the debug build and on the debug kernel some tests of
# tests/rm-client run as well; job rm runs them all on the release build and the lean
# kernel. Eight GPUs are only initialised.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

JOB=gpu
OUT=$BUILD/gpu
# A minute on an idle host. KASAN and lockdep under emulation take ten times as long.
LEAN_SECONDS_MAX=900
DEBUG_SECONDS_MAX=1800
# NVIDIA's tests violate ten assertions of semaphores that jump, and two of values that are
# completed before they are queued.
PROVOKED=12

# rm_filter RUN: names the tests of tests/rm-client that a run has: those of managed memory
# with UVM's assertions, a few of each other kind on the debug kernel. A test takes twice as
# long on the debug build, so all of the former run for `make test-long` only.
rm_filter() {
	case $1 in
	*-uvm-debug)
		if long; then
			echo managed_,host_memory_,replayable_,fault_sh,fault_storm,faults_of,nvidia_test
		else
			echo managed_memory_of_random,memory_of_threads_at,of_a_write_follows,fault_shortages_in,nvidia_test
		fi
		;;
	debug/*)
		echo group_sums,group_takes_what,group_follows,limit_timeslice_follows_a_move,limit_freeze_stops,limit_freeze_ends,managed_memory_when_each
		;;
	esac
}

# oracle RUN: names what leaves little of the GPU's memory to random programs in a run, and their
# number. On a busy host one takes half a second on the stock driver and 1.5 s on the debug build.
oracle() {
	local count=12
	! long || count=200
	case $1 in
	lean/stock) echo small $count ;;
	lean/patched) echo limit $count ;;
	lean/patched-uvm-debug) echo limit 12 ;;
	esac
}

machine() {
	local kernel=${1%/*} variant=${1#*/} stock='' uvm='' seconds=$LEAN_SECONDS_MAX
	[ "$variant" != stock ] || stock=1
	[ "$variant" != patched-uvm-debug ] || uvm=debug
	[ "$kernel" = lean ] || seconds=$DEBUG_SECONDS_MAX
	NV_VERSION=$VERSION GCT_STOCK=$stock GCT_UVM=$uvm KDIR=$BUILD/linux/$kernel "$ROOT/ci/kmod.sh"
	rm_filter "$1" >"$OUT/filter"
	oracle "$1" >"$OUT/oracle"
	printf '==> driver %s %s, %s kernel\n' "$VERSION" "$variant" "$kernel"
	"$GCT_VM" run --build "$BUILD" --nv "$VERSION" "${SOFTWARE_GPU[@]}" --kernel "$kernel" --variant "$variant" --gpus 2 \
		--file "$FIRMWARE" \
		"$ROOT/tests/fakegpu/driver/guest.sh:/test/driver.sh" \
		"$BUILD/uvm/$VERSION/uvm-tests" "$GUEST_BIN/rm-test" "$OUT/filter:/test/filter" \
		"$OUT/oracle:/test/oracle" \
		--script "$ROOT/tests/fakegpu/driver/gpu.sh" --ktap --quiet \
		--timeout $seconds --record "$OUT/$kernel-$variant.record" \
		--log "$OUT/$kernel-$variant.log" --results "$RESULTS/$JOB" || true
}

# alone NAME VARIANT COMMAND [ARGUMENT...]: one command of rm-test in a machine of its own, on the
# lean kernel, with more arguments for gct-vm.
alone() {
	local name=$1 variant=$2 command=$3
	shift 3
	echo "$command" >"$OUT/filter"
	printf '==> driver %s %s: %s\n' "$VERSION" "$variant" "$command"
	"$GCT_VM" run --build "$BUILD" --nv "$VERSION" "${SOFTWARE_GPU[@]}" --kernel lean --variant "$variant" --gpus 2 \
		--file "$GUEST_BIN/rm-test" "$OUT/filter:/test/filter" "$FIRMWARE" \
		--script "$ROOT/tests/rm-client/vm.sh" --ktap --quiet \
		--timeout $DEBUG_SECONDS_MAX --log "$OUT/$name.log" --results "$RESULTS/$JOB" "$@" || true
}

# As many GPUs as a big machine has: each is initialised, let go and taken again.
eight_gpus() {
	NV_VERSION=$VERSION KDIR=$BUILD/linux/lean "$ROOT/ci/kmod.sh"
	printf '==> driver %s patched, lean kernel, eight GPUs\n' "$VERSION"
	"$GCT_VM" run --build "$BUILD" --nv "$VERSION" "${SOFTWARE_GPU[@]}" --kernel lean --variant patched --gpus 8 \
		--file "$FIRMWARE" \
		--script "$ROOT/tests/fakegpu/driver/guest.sh" --ktap --quiet \
		--timeout $LEAN_SECONDS_MAX --log "$OUT/eight.log" --results "$RESULTS/$JOB" || true
}

# The result of each of NVIDIA's tests by its name, and the values that they print. No value is a
# time, and none depends on kernel or build.
outcome() {
	sed -nE 's/^ +\| (ok|not ok) [0-9]+ ([A-Z0-9_]+)$/\1 \2/p; s/^ +\| (# value .*)/\1/p' \
		"$OUT/${1/\//-}.log"
}

# test_same RUN: what the stock driver does, this one does. Values must be there to be compared.
test_same() {
	outcome lean/stock | grep -c '^# value' &&
		diff -u --label stock --label "$1" <(outcome lean/stock) <(outcome "$1")
}

# The lines of random programs: their pages, and a hash of all that they hold and have computed.
programs() {
	sed -nE 's/^ +\| # (program [0-9]+: .*)/\1/p' "$OUT/${1/\//-}.log"
}

# test_programs RUN: what programs compute does not depend on what leaves them little memory of the
# GPU: others' memory on the stock driver, or their limit on this one.
test_programs() {
	local count
	count=$(oracle "$1" | cut -d' ' -f2)
	[ "$(programs "$1" | wc -l)" -eq "$count" ] &&
		diff -u --label stock --label "$1" <(programs lean/stock | head -n "$count") <(programs "$1")
}

# What managed memory over a limit moves is what the page says, on each driver.
test_swap() {
	local page=$ROOT/gctgroup-docs/results/uvm-swap.md
	"$ROOT/ci/uvm-swap.sh" "$OUT/lean-stock.log" "$OUT/${1/\//-}.log" >"$OUT/uvm-swap.md" || return
	[ -z "${GCT_BLESS:-}" ] || cp "$OUT/uvm-swap.md" "$page"
	diff -u --label page --label "$1" "$page" "$OUT/uvm-swap.md"
}

# Assertions that failed although NVIDIA's tests do not provoke them fail the machine.
test_provoked() {
	local log=$OUT/${1/\//-}.log
	[ "$(grep -c 'kmsg|.* nvidia-uvm: .* Assert failed' "$log")" -eq $PROVOKED ]
}

runs=("$@")
[ $# -gt 0 ] || runs=(lean/stock lean/patched-uvm-debug)
[ $# -gt 0 ] || ! long || runs+=(lean/patched debug/patched)
rm -f "$RESULTS/$JOB"
mkdir -p "$OUT" "$RESULTS"
# The logs of an earlier run must not stand in for one that did not start.
rm -f "$OUT"/*.log
need_driver
need_tools
need_guest_programs rm-client
step "UVM test program" make -C "$ROOT/tests/uvm" -j"$JOBS" \
	NV="$BUILD/nv/$VERSION/kernel-open" OUT="$BUILD/uvm/$VERSION"
need_software_gpu "$VERSION" "$OUT/firmware"
for run in "${runs[@]}"; do
	machine "$run"
	[ "$run" = lean/stock ] || [ ! -e "$OUT/lean-stock.log" ] ||
		check $JOB "NVIDIA's tests: $run does what the stock modules do" test_same "$run"
	case $run in
	lean/patched*)
		if [ -e "$OUT/lean-stock.log" ]; then
			check $JOB "random programs: $run computes what the stock modules do" \
				test_programs "$run"
			# The page is of this driver.
			[ "$VERSION" != "$NV_SOURCE_VERSION" ] ||
				check $JOB "results/uvm-swap.md: $run moves what the page says" test_swap "$run"
		fi
		;;
	esac
	case $run in
	*-uvm-debug) check $JOB "$run: assertions that NVIDIA's tests provoke" test_provoked "$run" ;;
	esac
done
[ $# -gt 0 ] || ! long || eight_gpus
# A hundred thousand random operations of many address spaces in all, by five numbers. The debug
# build compares the ledger with the root chunks whenever one closes.
for count in 20000 20001 20002 20003 20004; do
	[ $# -gt 0 ] || ! long || alone "spaces-$count" patched-uvm-debug "spaces $count"
done
"$BUILD/uvm/$VERSION/uvm-tests" --list | sed -n 's/^not run  /    not run: /p'
finish $JOB
