#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Tests that a program does not notice the library, on a machine with a GPU, the stock driver, nvcc
# and PyTorch: its processor, its signal handlers, and launch APIs that no other test covers.
#
#     usage: tests/hw/invisible.sh DIR
#
# gct-load, gctd, gctctl and libgct_preload.so are in DIR.
set -u
here=$(dirname "$(realpath "$0")")
. "$(dirname "$0")/lib.sh"
unset GCTGROUP_DIR
library=$bin/libgct_preload.so
tpcs=$(LD_PRELOAD=$library "$bin/gct-load" tpcs | tail -n 1)
half=$(tr , '\n' <<<"$tpcs" | head -n 16 | paste -sd,)

# --- One processor.
# Prints the smallest of three medians of a launch and the wait for it, in nanoseconds.
wait_ns() {
	for _ in 1 2 3; do
		"$@" "$bin/gct-load" launches --waits 3000 --queued 1000 |
			sed -n 's/.*"launch_and_wait_p50_us":\([0-9.]*\).*/\1/p'
	done | sort -g | head -n 1 | awk '{ print int($1 * 1000) }'
}
# Returns whether a time is at most PERCENT of the native one.
within() {
	local percent=$1 native=$2 governed=$3
	echo "native $native ns, governed $governed ns"
	[ -n "$native" ] && [ "$governed" -le $((native * percent / 100)) ]
}
governed=(env LD_PRELOAD="$library")
check "on one processor a launch takes what it takes natively" \
	within 110 "$(wait_ns taskset -c 0)" "$(wait_ns "${governed[@]}" taskset -c 0)"
check "under a mask, too" \
	within 110 "$(wait_ns taskset -c 0)" "$(wait_ns "${governed[@]}" GCTGROUP_TPC_MASK="$half" taskset -c 0)"
daemon() {
	export GCTGROUP_DIR=$work/daemon
	mkdir "$GCTGROUP_DIR"
	"$bin/gctd" 2>"$work/gctd" &
	gctd=$!
	for _ in $(seq 100); do
		"$bin/gctctl" --user create lone >/dev/null 2>&1 && break
		sleep 0.05
	done
	"$bin/gctctl" --user set lone compute.priority=0
}
check "a daemon starts" daemon
check "alone under a daemon's priority it takes at most a quarter more" \
	within 125 "$(wait_ns taskset -c 0)" \
	"$(wait_ns "$bin/gctctl" run --preload "$library" --group lone -- taskset -c 0)"
kill "$gctd"
unset GCTGROUP_DIR

# --- Handlers.
cat >"$work/crash.py" <<'PROGRAM'
import faulthandler, subprocess, time, torch
faulthandler.enable()
x = torch.ones(8, device="cuda")
for n in range(2):
    subprocess.run(["true"])
    time.sleep(0.1)
    print("sum", float((x + n).sum()), flush=True)
faulthandler._sigsegv()
PROGRAM
crashes() {
	"${governed[@]}" python3 "$work/crash.py" >"$work/crash" 2>&1
	grep -q '^sum 16.0' "$work/crash" && grep -q 'crash.py", line 8' "$work/crash"
}
check "faulthandler says where Python has crashed, after subprocess" crashes

# --- Launch APIs.
nvcc -arch=native -rdc=true -o "$work/features" "$here/features.cu" -lcudadevrt -lcuda 2>/dev/null
check "features.cu compiles" [ -x "$work/features" ]
sms_of() { sed -n 's/.*"sms":\([0-9]*\).*/\1/p' "$work/$1"; }
feature() {
	local name=$1 file=$2
	shift 2
	env "$@" timeout -s KILL 60 "$work/features" "$name" >"$work/$file"
}
for name in dynamic device-graph conditional green ipc; do
	check "$name, natively" feature $name native
	check "$name, governed" feature $name free LD_PRELOAD="$library"
	check "$name, on 16 TPCs" feature $name masked LD_PRELOAD="$library" GCTGROUP_TPC_MASK="$half"
	check "$name, paced" feature $name paced LD_PRELOAD="$library" GCTGROUP_ATOM_DURATION=50us
	echo "$name: $(sms_of native) SMs natively, $(sms_of masked) on 16 TPCs"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
