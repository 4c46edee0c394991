#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Tests that waits end, on a machine with a GPU and the stock driver: streams that share a channel,
# a neighbour of an earlier priority that is stopped, blocks that wait for each other beside quotas
# that came later, a launch that does not end.
#
#     usage: tests/hw/waits.sh DIR      gctd, gctctl, gct-load and libgct_preload.so are in DIR
set -u
. "$(dirname "$0")/lib.sh"

# Prints a number of the line of JSON in a file.
field() { sed -n "s/.*\"$2\":\([0-9.]*\).*/\1/p" "$1"; }
less() { awk -v a="${1:-none}" -v b="$2" 'BEGIN { exit !(a != "none" && a < b) }'; }

check "the daemon starts" start_daemon

# --- Streams that wait for each other.
streams() { "$@" timeout 60 "$bin/gct-load" streams --rounds 20; }
export CUDA_DEVICE_MAX_CONNECTIONS=1
streams env >"$work/native"
cat "$work/native"
check "streams that share a channel wait for each other natively" [ "$(field "$work/native" late)" = 0 ]
streams run --group streams --atom 20us -- >"$work/paced"
cat "$work/paced"
check "paced they end, too" [ "$(field "$work/paced" late)" = 0 ]
check "each within a tenth of a second" less "$(field "$work/paced" max_ms)" 100
unset CUDA_DEVICE_MAX_CONNECTIONS
streams run --group streams --atom 20us -- >"$work/apart"
cat "$work/apart"
check "with channels of their own, too" [ "$(field "$work/apart" late)" = 0 ]

# --- A stopped neighbour of an earlier priority.
stopped_neighbour() {
	local how=$1
	set_ early compute.priority=0
	set_ late compute.priority=15
	run --group late -- "$bin/gct-load" watch --seconds 60 --every-ms 10 >"$work/late" &
	local late=$!
	runs() { [ "$(lines "$work/late")" -gt 5 ]; }
	check "$how: the later one runs" eventually runs
	# Paced and queued behind each other, so that it always has work that progresses.
	run --group early --atom 100us -- "$bin/gct-load" best-effort --blocks 26400 --threads 1024 --cycles 45000 \
		--seconds 50 >/dev/null &
	local early=$!
	waits() {
		local before
		before=$(lines "$work/late")
		sleep 1
		[ "$(lines "$work/late")" -le $((before + 3)) ]
	}
	check "$how: it waits while the earlier one works" eventually waits
	local pid
	pid=$(process_of early)
	kill -STOP "$pid"
	local before
	before=$(lines "$work/late")
	goes_on() { [ "$(lines "$work/late")" -gt $((before + 20)) ]; }
	check "$how: it goes on when that is stopped" eventually goes_on
	kill -CONT "$pid"
	check "$how: it waits again when that goes on" eventually waits
	kill "$early" "$late" "$pid" "$(process_of late)" 2>/dev/null
	wait "$early" "$late" 2>/dev/null
}
ctl create early >/dev/null
ctl create late >/dev/null
stopped_neighbour "by turns"
export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps-log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
stopped_neighbour "under MPS"

# --- Blocks that wait for each other. The first program sees the whole GPU, and has it at once as
# soon as it has waited, whatever quota comes later. The second one sees what the first leaves.
# Beside an owner of an earlier priority a program with a quota sees its own TPCs alone.
set_ early compute.priority=8
set_ late compute.priority=8
all=$("$bin/gct-load" sms | tr , '\n' | wc -l)
barriers() {
	local how=$1 kind=$2
	run --group "first-$kind" --quota 20 -- timeout 60 "$bin/gct-load" barrier --how "$kind" --seconds 7 >"$work/first" &
	local first=$!
	sleep 3
	run --group "later-$kind" --quota 40 -- timeout 60 "$bin/gct-load" barrier --how "$kind" --seconds 2 >"$work/later"
	wait $first
	cat "$work/first" "$work/later"
	check "$how: a program with a quota sees the whole GPU" [ "$(field "$work/first" sms)" = "$all" ]
	check "$how: the next one what that leaves" [ "$(field "$work/later" sms)" = $((all - 40)) ]
	check "$how: the $kind blocks of both meet" [ "$(cat "$work/first" "$work/later" | grep -c '"met":true')" = 2 ]
	ctl rm "first-$kind" "later-$kind" >/dev/null
}
for kind in plain cluster cooperative; do
	barriers "under MPS" $kind
done
echo quit | nvidia-cuda-mps-control
unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
for kind in plain cooperative; do
	barriers "by turns" $kind
done

# --- A launch that does not end is reported.
event() { get "$1" compute.events | sed -n "s/^$2 //p"; }
has_event() { [ "$(event "$1" "$2")" -ge 1 ] 2>/dev/null; }
run --group narrow --tpc 0-3 -- "$bin/gct-load" sms --blocks 264 --threads 1024 --cycles 1000 >/dev/null
check "a launch that the mask cannot hold at once is counted" eventually has_event narrow/0 narrowed
check "and did not stall" [ "$(event narrow/0 stalled)" = 0 ]
run --group never --tpc 0-3 -- timeout 60 "$bin/gct-load" streams --rounds 1 --never --limit-ms 9000 >/dev/null &
never=$!
sleep 4
check "a launch that does not end" eventually has_event never/0 stalled
wait $never

echo "$passed passed, $failed failed"
[ $failed = 0 ]
