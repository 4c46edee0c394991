#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test.sh [JOB...]
#
# Runs test jobs one after the other, each a script ci/test-JOB.sh, and prints
# what each took. The last line is "N passed, M failed", over all jobs.
. "$(dirname "$0")/lib.sh"

jobs=("$@")
[ ${#jobs[@]} -gt 0 ] || jobs=(host kmod patches gate selftests fakegpu rm gctctl uvm demo)

mkdir -p "$RESULTS"
summary=()
for job in "${jobs[@]}"; do
	printf '\n######## %s\n' "$job"
	rm -f "$RESULTS/$job"
	start=$SECONDS status=0
	"$ROOT/ci/test-$job.sh" || status=$?
	passed=0 failed=0
	if [ -e "$RESULTS/$job" ]; then
		while read -r p f; do
			passed=$((passed + p)) failed=$((failed + f))
		done <"$RESULTS/$job"
	fi
	# A job that dies between two tests has not passed.
	if [ $status -ne 0 ] && [ $failed -eq 0 ]; then
		failed=1
		record "$job" 0 1
	fi
	summary+=("$(printf '%-12s %5d passed %4d failed %6d s' "$job" $passed $failed $((SECONDS - start)))")
	passed_total=$((${passed_total:-0} + passed))
	failed_total=$((${failed_total:-0} + failed))
done

printf '\n'
printf '%s\n' "${summary[@]}"
printf '%d passed, %d failed\n' "$passed_total" "$failed_total"
[ "$failed_total" -eq 0 ] && [ "$passed_total" -gt 0 ]
