#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What needs no kernel: source rules, format, clippy, and the tests of all
# crates of the workspace.
. "$(dirname "$0")/lib.sh"

job=host
rm -f "$RESULTS/$job"
cd "$ROOT/userspace"

check $job "every source file keeps the rules (ci/tidy.sh)" "$ROOT/ci/tidy.sh"
check $job "rustfmt" cargo fmt --all --check
# Kbuild's own crates are no members of the workspace.
check $job "rustfmt of the kernel crate" \
	rustfmt --edition 2021 --check --config-path "$ROOT" "$ROOT/rust/gct_kernel/gct_kernel.rs"
check $job "clippy without a warning" \
	cargo clippy --workspace --all-targets --locked -- -D warnings

# Each test counts; a crate that does not compile counts as one failure.
log=$BUILD/log/host-tests.log
mkdir -p "$BUILD/log"
# More schedules of tenants against an administrator (engine/tests/schedules.rs).
if long; then
	export GCT_SCHEDULES=${GCT_SCHEDULES:-5000}
fi

# The programs of tests wait most of the time, so several run at once. Cargo runs one after the
# other: its runner only notes them.
export log TEST_PROGRAMS=$BUILD/log/host-test-programs
note_test_programs() {
	local host
	host=$(rustc --version --verbose | sed -n 's/^host: //p' | tr a-z- A-Z_)
	rm -f "$TEST_PROGRAMS"
	env "CARGO_TARGET_${host}_RUNNER=$ROOT/ci/note-test-program.sh" \
		cargo test --workspace --locked --no-fail-fast --tests
}

# run_test_program DIR LIBRARIES PROGRAM: runs one, and adds its output to the log in one piece.
run_test_program() {
	local output=$log.${3##*/} status=0
	(cd "$1" && LD_LIBRARY_PATH=$2 "$3") >"$output" 2>&1 || status=$?
	(
		flock 9
		printf '     Running %s\n' "$3"
		cat "$output"
	) >>"$log" 9>"$log.lock"
	rm "$output"
	return $status
}
export -f run_test_program

printf '==> cargo test\n'
status=0 limit=1200
rm -f "$log".*
{
	cargo test --workspace --locked --no-run && note_test_programs &&
		cargo test --workspace --locked --no-fail-fast --doc
} >"$log" 2>&1 || status=$?
if [ $status -eq 0 ]; then
	timeout --kill-after=10 $limit xargs -0 -n 3 -P 4 bash -c 'run_test_program "$@"' run \
		<"$TEST_PROGRAMS" || status=$?
fi
if [ $status -eq 124 ]; then
	printf 'FAILED the tests were stopped after %d s. These ran:\n' $limit
	tail -n 2 "$log".*-*
fi
read -r passed failed < <(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
grep -E '^test .* FAILED$|^error' "$log" || true
[ $status -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
if [ "$failed" -gt 0 ]; then
	grep -A 3 ' panicked at ' "$log" | head -n 60 || true
	note "whole log: $log"
fi
note "$passed passed, $failed failed"
record $job "$passed" "$failed"

# What `make user` makes, in the profile of the tests, which have built most of it: the programs run
# from their folder, and a program under them has the library.
user_mode_runs() {
	local out=$BUILD/user-test directory status=0
	rm -rf "$out"
	"$ROOT/ci/user.sh" "$out" dev || return
	"$out/gctd" --help && "$out/gctctl" --version && "$out/gct-exporter" --version && "$out/gct-device-plugin" --version && "$out/gct-load" --help && "$out/gct-hw" --help || return
	# Elsewhere than below the clone, whose path may be too long for a socket's.
	directory=$(mktemp -d)
	"$out/gctd" --dir "$directory" &
	local daemon=$!
	for ((i = 0; i < 100; i++)); do
		[ -e "$directory/admin.sock" ] && break
		sleep 0.1
	done
	"$out/gctctl" --dir "$directory" run -- grep libgct_preload.so /proc/self/maps || status=$?
	kill $daemon && wait $daemon || status=1
	[ ! -e "$directory/admin.sock" ] && rm -r "$directory" || status=1
	return $status
}
check $job "the programs of \`make user\` run, on a daemon" user_mode_runs

"$ROOT/ci/setup-prometheus.sh"
check_script $job "$BUILD/log/$job-prometheus.log" \
	"$ROOT/userspace/gct-exporter/tests/prometheus.sh" "$BUILD/user-test" "$BUILD/prometheus"

# The fuzz targets have a workspace of their own; here they run on a fixed seed.
fuzz_smoke() {
	cd "$ROOT/userspace/fuzz"
	CARGO_TARGET_DIR=$CARGO_TARGET_DIR/fuzz cargo run --release --locked --bin smoke -- 200000 1
}
check $job "fuzz targets, 200000 inputs" fuzz_smoke
finish $job
