#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test.sh [JOB...]
#
# Runs test jobs, each a script ci/test-JOB.sh, and prints what each took. The
# last line is "N passed, M failed", over all jobs. LANES of them run at a time,
# since a job waits for one virtual processor most of the time; a job's output
# is shown when the job ends, or at once when there is only one.
#
# With NV_VERSION=580.142 NV_SRC=DIR, or 595.45.04, the jobs gctctl, gpu, rm, selftests and uvm run
# on that driver, and the job demo on it, too. NV_SRC is for it alone: all others are taken from
# build/nv.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/cargo-store.sh"
. "$ROOT/ci/chroot.sh"
. "$ROOT/ci/cuda-root.sh"

# The longest first, so that the lanes end together.
jobs=("$@")
everything=
if [ ${#jobs[@]} -eq 0 ]; then
	everything=yes
	need_space 8 "a test of everything"
	jobs=(patches selftests gpu uvm host rm gctctl demo port kmod gate setup)
	! long || jobs=(linux mutations rm-debug "${jobs[@]}")
	if has_cuda; then
		jobs+=(cuda)
	else
		printf 'the job cuda needs packages of non-free, which the setup did not fetch: left out\n'
	fi
	if can_run_kubernetes; then
		jobs+=(kubernetes)
	else
		printf 'the job kubernetes needs root, namespaces and cgroups: left out\n'
	fi
	if can_chroot; then
		jobs+=(packages)
	else
		printf 'the job packages needs root and mounts: left out\n'
	fi
fi
need_source "${NV_VERSION:-}"
LANES=${LANES:-2}
LANES=$((LANES < ${#jobs[@]} ? LANES : ${#jobs[@]}))

# A job that hangs must not hide what the others have to say. No job takes half of it.
JOB_LIMIT=${JOB_LIMIT:-1800}
! long || JOB_LIMIT=$((JOB_LIMIT * 6))

mkdir -p "$RESULTS"
outputs=$BUILD/log/jobs
rm -rf "$outputs"
mkdir -p "$outputs"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

counts_of() {
	local passed=0 failed=0 p f
	if [ -e "$RESULTS/$1" ]; then
		while read -r p f; do
			passed=$((passed + p)) failed=$((failed + f))
		done <"$RESULTS/$1"
	fi
	printf '%d %d' $passed $failed
}

# Leaves in processor_seconds what this shell's children have used, user and system.
# In a subshell `times` would begin at zero.
count_processor() {
	times >"$outputs/$1.times"
	processor_seconds=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); s += t[1] * 60 + t[2] } }
		END { printf "%d", s }' "$outputs/$1.times")
}

# Runs one job and leaves its line of the summary in $outputs/JOB.line.
run_job() {
	local job=$1 start=$SECONDS status=0 passed failed before processor_seconds
	rm -f "$RESULTS/$job"
	count_processor "$job"
	before=$processor_seconds
	timeout --kill-after=60 "$JOB_LIMIT" "$ROOT/ci/test-$job.sh" </dev/null || status=$?
	count_processor "$job"
	read -r passed failed <<<"$(counts_of "$job")"
	# A job that dies between two tests has not passed.
	if [ $status -ne 0 ] && [ "$failed" -eq 0 ]; then
		failed=1
		[ $status -ne 124 ] || printf 'job %s was stopped after %d s\n' "$job" "$JOB_LIMIT"
		printf 'job %s ended with status %d and no failed test\n' "$job" $status
		record "$job" 0 1
	fi
	printf '%-12s %5d passed %4d failed %6d s, %d s of processor\n' "$job" "$passed" "$failed" \
		$((SECONDS - start)) $((processor_seconds - before)) >"$outputs/$job.line"
}

# Takes the next job that no lane has taken until none is left.
run_lane() {
	local job
	for job in "${jobs[@]}"; do
		mkdir "$outputs/$job.taken" 2>/dev/null || continue
		printf '######## %s started\n' "$job"
		run_job "$job" >"$outputs/$job.log" 2>&1
		# One piece, so that two lanes do not mix their lines.
		(
			flock 9
			printf '\n######## %s\n' "$job"
			cat "$outputs/$job.log"
		) 9>"$outputs/lock"
	done
}

start=$SECONDS
if [ "$LANES" -le 1 ]; then
	for job in "${jobs[@]}"; do
		printf '\n######## %s\n' "$job"
		run_job "$job" 2>&1 | tee "$outputs/$job.log"
	done
else
	for ((lane = 0; lane < LANES; lane++)); do
		run_lane &
	done
	wait
fi

# Prints the failures of a log, each test with the remarks that stand around its result.
failures_in() {
	awk '
		{ text = $0; sub(/^ *\| */, "", text) }
		text ~ /^# / { remarks[++count] = $0; if (after-- > 0) print; next }
		text ~ /^not ok / {
			for (at = count > 8 ? count - 7 : 1; at <= count; at++) print remarks[at]
			print; after = 1
		}
		text !~ /^not ok / { after = 0 }
		/^FAILED |^gct-vm: [^0-9]|^error/ { print }
		{ count = 0 }
	' "$1"
}

# Again at the end, where whoever looks at a long log looks first.
show_failures() {
	local job
	for job in "${jobs[@]}"; do
		[ ! -e "$outputs/$job.log" ] || failures_in "$outputs/$job.log" | sed "s/^/$job: /"
	done
}

passed_total=0 failed_total=0
printf '\n'
show_failures
for job in "${jobs[@]}"; do
	cat "$outputs/$job.line" 2>/dev/null || printf '%-12s did not end\n' "$job"
	read -r passed failed <<<"$(counts_of "$job")"
	[ -e "$outputs/$job.line" ] || failed=$((failed + 1))
	passed_total=$((passed_total + passed))
	failed_total=$((failed_total + failed))
done
# All that the jobs build has been built then.
[ -z "$everything" ] || [ "$failed_total" -gt 0 ] || save_crates
printf 'tests took %d s in %d lanes\n' $((SECONDS - start)) "$LANES"
printf '%d passed, %d failed\n' "$passed_total" "$failed_total"
[ "$failed_total" -eq 0 ] && [ "$passed_total" -gt 0 ]
