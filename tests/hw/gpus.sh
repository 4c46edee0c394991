#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Tests the user-space mode on a machine with two GPUs and the stock driver: each GPU has its own
# limits, also for one program that uses both at the same time.
#
#     usage: tests/hw/gpus.sh DIR      gctd, gctctl, gct-load and libgct_preload.so are in DIR
set -u
. "$(dirname "$0")/lib.sh"

[ "$("$bin/gct-load" --gpu 1 sms | tr , '\n' | wc -l)" -gt 1 ] || {
	echo "two GPUs are needed"
	exit 1
}
native=$("$bin/gct-load" sms | tr , '\n' | wc -l)
echo "SMs natively: $native"

# Writes the last line that a watched program printed about a GPU.
last_of() { grep "\"gpu\":$2," "$1" | tail -n 1 >"$1.$2"; }
of_at_most() { last_of "$1" "$2" && sms_at_most "$1.$2" "$3"; }
of_over() { last_of "$1" "$2" && sms_over "$1.$2" "$3"; }
lines_of() { grep -c "\"gpu\":$2," "$1"; }

check "the daemon starts" start_daemon
check "it finds both GPUs" [ "$(ctl ls | grep -cE "H[12]00")" -ge 2 ]

run --group both -- "$bin/gct-load" watch --beside 1 --seconds 20 --every-ms 10 >"$work/both" &
check "a program without limits has all of one GPU" eventually of_over "$work/both" 0 $((native - 1))
check "and all of the other" eventually of_over "$work/both" 1 $((native - 1))
both=$(process_of both)
check "it has a directory on each" [ "$(ctl ls | grep -c "^$both")" -ge 1 -a "$(get "$both/1" compute.stat | grep -c .)" -gt 2 ]
set_ both/1 tpc.mask=0-3
check "a mask on the second GPU holds there" eventually of_at_most "$work/both" 1 8
check "and not on the first" of_over "$work/both" 0 $((native - 1))
set_ both/0 tpc.mask=0-7
check "another holds on the first" eventually of_at_most "$work/both" 0 16
check "without touching that of the second" of_at_most "$work/both" 1 8
set_ both/1 tpc.mask=all
check "without its mask the second is whole again" eventually of_over "$work/both" 1 $((native - 1))
for gpu in 0 1; do
	check "GPU $gpu takes a time slice of its own" set_ both/$gpu compute.timeslice=$((100 + gpu))
	check "its launches are counted" grep -qE '^launches [1-9]' <(get both/$gpu compute.stat)
	check "its memory is charged" [ "$(get both/$gpu gmem.current)" -gt 1000000 ]
done
set_ both/0 compute.freeze=1
sleep 0.3
before=$(lines_of "$work/both" 0) others=$(lines_of "$work/both" 1)
sleep 1
check "the first GPU is frozen" [ "$(lines_of "$work/both" 0)" = "$before" ]
check "the second is not" [ "$(lines_of "$work/both" 1)" -gt $((others + 5)) ]
set_ both/0 compute.freeze=0
thawed() { [ "$(lines_of "$work/both" 0)" -gt $((before + 5)) ]; }
check "the first goes on" eventually thawed
kill "$both"
gone() { ! ctl ls | grep -q "^$both"; }
check "its directory goes" eventually gone

for gpu in 0 1; do
	run --group exact --atom 50us -- "$bin/gct-load" --gpu $gpu exact --rounds 100 >"$work/exact" 2>&1
	check "every block runs once on GPU $gpu" [ $? = 0 ]
	tail -n 1 "$work/exact"
done
check "the second was paced by its own limit" grep -q '^atoms' <(get exact/1 compute.stat)

# Each GPU looks as large as its own limits leave it. A kernel whose blocks wait for each other on
# the whole device ends.
ctl create sized >/dev/null
set_ sized/0 tpc.mask=0-15
set_ sized/1 tpc.quota=5 tpc.steal=0
for gpu in 0 1; do
	run --group sized -- "$bin/gct-load" --gpu $gpu barrier >"$work/barrier.$gpu"
	cat "$work/barrier.$gpu"
	check "on GPU $gpu all blocks meet" grep -q '"met":true' "$work/barrier.$gpu"
done
sees() { sed -n 's/.*"sms":\([0-9]*\),.*/\1/p' "$work/barrier.$1"; }
check "the first GPU looks like its mask" [ "$(sees 0)" -gt 10 -a "$(sees 0)" -le 32 ]
check "the second like its quota, a cap with tpc.steal 0" [ "$(sees 1)" = 10 ]
check "nothing was left to the stock driver" [ -z "$(get . events | grep -v ' 0$')" ]
get . events | tr '\n' ' '
echo
echo "$passed passed, $failed failed"
[ $failed = 0 ]
