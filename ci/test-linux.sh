#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs the jobs that a kernel can change on each supported series of Linux but the
# one of this clone, with both flavours. Their kernels and modules are built in
# build/linux-SERIES; the first time takes as long as the setup. `make test-long`
# runs this job.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

JOB=linux
JOBS_OF_A_KERNEL=(gate selftests gpu rm demo)
rm -f "$RESULTS/$JOB"
mkdir -p "$BUILD/log"

# run_series SERIES: shows the jobs' output and counts their tests here.
run_series() {
	local log=$BUILD/log/linux-$1.log passed=0 failed=0
	LINUX_SERIES=$1 "$ROOT/ci/setup.sh" || return
	LINUX_SERIES=$1 GCT_LONG='' LANES=1 "$ROOT/ci/test.sh" "${JOBS_OF_A_KERNEL[@]}" | tee "$log" || true
	read -r passed failed < <(sed -n '$s/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log") || return
	record $JOB "$passed" "$failed"
}

for series in $LINUX_SUPPORTED; do
	[ "$series" != "$LINUX_SERIES" ] || continue
	printf '==> Linux %s\n' "$series"
	run_series "$series" || {
		printf 'FAILED  Linux %s\n' "$series"
		record $JOB 0 1
	}
done
finish $JOB
