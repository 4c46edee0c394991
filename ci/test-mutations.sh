#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-mutations.sh [PART...]
#
# Takes one defence out of the source at a time, as tests/mutations/*.patch do, and expects that
# tests fail without it. A PART chooses mutations by a part of their name. Works on a copy of the
# source, in build/mutations. A mutation that does not apply or build, or that is not in
# gctgroup-docs/safety.md, has failed. Its head says what must happen:
#
#   Fails: TEST      this test of rm-test fails; further lines name further tests
#   Full: TEST       this one of those fails on a GPU whose memory is full
#   Cuda: TEST       this one of job cuda fails, on NVIDIA's own libcuda
#   Reports: TEXT    the kernel reports a bug in a line with this text
#   Host: TEST       this test of gct_core fails on the host
#   Kunit: TEST      this test of the KUnit suites fails
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/cuda-root.sh"

JOB=mutations
# A mutant may hang until its tests give up.
SECONDS_MAX=300
OUT=$BUILD/mutations
TREE=$OUT/tree
TREE_BUILD=$TREE${BUILD#"$ROOT"}

# Makes the copy. It shares what is built of others' sources, and has modules of its own. What has
# changed gets the time of now, so that make sees what an interrupted run has left.
make_tree() {
	local entry name
	mkdir -p "$TREE_BUILD"
	rsync -rlpc --delete --exclude /build "$ROOT/" "$TREE/"
	for entry in "$BUILD"/*; do
		name=$(basename "$entry")
		case $name in
		kmod | log | mutations | results | rm | work) ;;
		*) link_to "$entry" "$TREE_BUILD/$name" ;;
		esac
	done
}

# said PATCH WORD: prints what the lines of that word in a patch's head say.
said() {
	sed -n "/^--- /q; s/^$2: //p" "$1"
}

# run_machine SCRIPT FILTER [ARGUMENT...]: runs tests on the mutant's modules, with more arguments
# for gct-vm, and adds to the log. Their programs are not mutated.
run_machine() {
	local script=$1
	printf '%s\n' "$2" >"$OUT/filter"
	shift 2
	"$GCT_VM" run --build "$TREE_BUILD" --kernel lean --nv "$NV_SOURCE_VERSION" --variant patched \
		--file "$OUT/filter:/test/filter" "$FIRMWARE" --script "$ROOT/tests/$script/vm.sh" --ktap --quiet \
		--log "$OUT/machine.log" --timeout $SECONDS_MAX "$@" || true
	cat "$OUT/machine.log" >>"$OUT/log"
}

# run_cuda FILTER: runs tests of job cuda on the mutant's modules.
run_cuda() {
	has_cuda || die "there is no build/cuda: run make setup with GCT_NONFREE=yes"
	need_cuda "$OUT"
	printf 'limits\n' >"$OUT/tests"
	run_machine cuda-client "$1" --gpus 1 --memory 2048 --file "${cuda_files[@]}" "$OUT/tests:/test/tests"
}

# Runs the KUnit suites on the mutant's modules.
run_kunit() {
	NV_VERSION=$NV_SOURCE_VERSION KDIR=$BUILD/linux/lean GCT_KUNIT=1 "$TREE/ci/kmod.sh" ||
		die "the suites do not build"
	"$GCT_VM" run --build "$TREE_BUILD" --kernel lean --nv "$NV_SOURCE_VERSION" --variant kunit \
		--script "$ROOT/tests/selftests/kunit.sh" --ktap --quiet --log "$OUT/log" \
		--timeout $SECONDS_MAX || true
}

# Ends with an error unless all happens that a patch names.
expect_failures() {
	local patch=$1 log=$OUT/log test tests full cuda texts
	: >"$log"
	tests=$(said "$patch" Fails | paste -sd,)
	full=$(said "$patch" Full | paste -sd,)
	cuda=$(said "$patch" Cuda | paste -sd,)
	[ -z "$tests$full$cuda" ] ||
		NV_VERSION=$NV_SOURCE_VERSION KDIR=$BUILD/linux/lean "$TREE/ci/kmod.sh" || die "it does not build"
	[ -z "$tests" ] || run_machine rm-client "$tests" --gpus 2 --file "$GUEST_BIN/rm-test"
	[ -z "$full" ] || run_machine rm-client "full $full" --gpus 2 --file "$GUEST_BIN/rm-test" --gpu-arg=--fb=768
	[ -z "$cuda" ] || run_cuda "$cuda"
	mapfile -t texts < <(said "$patch" Reports)
	for test in "${texts[@]}"; do
		grep -qF "$test" "$log" || die "the kernel does not report $test"
	done
	for test in $(said "$patch" Fails) $(said "$patch" Full) $(said "$patch" Cuda); do
		[ ${#texts[@]} -gt 0 ] || grep -qE "not ok [0-9]+ $test\$" "$log" || die "$test does not fail"
	done
	tests=$(said "$patch" Kunit)
	[ -z "$tests" ] || run_kunit
	for test in $tests; do
		grep -qE "not ok [0-9]+ $test\$" "$log" || die "$test does not fail"
	done
	for test in $(said "$patch" Host); do
		(cd "$TREE/userspace" && cargo test -p gct-core --lib --locked "$test" 2>&1 || true) |
			grep "^test .*$test.*FAILED" || die "$test does not fail"
	done
}

# Changes the copy as a patch says.
change() {
	patch --directory="$TREE" --strip=1 --fuzz=0 --no-backup-if-mismatch --input="$@"
}

try() {
	local patch=$1 name rc=0
	name=$(basename "$patch" .patch)
	if ! grep -qF "$name" "$ROOT/gctgroup-docs/safety.md"; then
		echo "safety.md does not name it"
		return 1
	fi
	change "$patch" || return
	(expect_failures "$patch") || rc=$?
	change "$patch" --reverse
	return $rc
}

rm -f "$RESULTS/$JOB"
mkdir -p "$OUT"
need_tools
need_guest_programs rm-client
need_firmware "$OUT/firmware"
make_tree
for part in "${@:-}"; do
	for patch in "$ROOT"/tests/mutations/*"$part"*.patch; do
		check $JOB "without $(basename "$patch" .patch)" try "$patch"
	done
done
finish $JOB
