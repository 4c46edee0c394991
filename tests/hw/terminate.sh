#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Tests that a client of MPS that ignores SIGTERM can be killed beside others, on a machine with a
# GPU and the stock driver: `gctctl drain` takes it from its server while its kernels run, it is
# killed, and its group is removed. Its neighbours go on with the right bits. In the end one is
# killed without that, and what its neighbour does is printed.
#
#     usage: tests/hw/terminate.sh DIR      gctd, gctctl, gct-load and libgct_preload.so are in DIR
set -u
. "$(dirname "$0")/lib.sh"
export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps-log
mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
trap 'echo quit -t 2 | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1; finish' EXIT

now_ms() { date +%s%3N; }
# become OPTION.. -- COMMAND..: in the background, its pid is the program's.
become() { exec "$bin/gctctl" run --preload "$bin/libgct_preload.so" "$@"; }
# exact ROUNDS: launches random grids as a member of a group, and checks each of their blocks.
exact() { become --group stays -- "$bin/gct-load" exact --plain --rounds "$1"; }
is_right() { grep -q '"stale_or_repeated":0,"wrong_at_host":0' "$1"; }
works() { get "$1/0" compute.stat | grep -qE '^usage_usec [1-9]'; }
lives() { [ -e "/proc/$1" ] && ! grep -q '^State:.*Z' "/proc/$1/status"; }
ended() { ! lives "$1"; }
removed() { ctl rm "$1" >/dev/null 2>&1; }
# goes_on FILE: a watched program prints more lines.
goes_on() {
	local before
	before=$(lines "$1")
	more() { [ "$(lines "$1")" -gt $((before + 20)) ]; }
	eventually more "$1"
}

# start NAME COMMAND...: a program of gct-load that ignores SIGTERM, in a group of its own.
start() {
	local name=$1
	shift
	become --group "$name" --tpc 0-40 -- bash -c 'trap "" TERM; exec "$@"' sh "$bin/gct-load" "$@" >"$work/$name" 2>&1 &
	goes=$!
	check "$name: it has work on the GPU" patiently works "$name"
	kill -TERM $goes
	sleep 1
	check "$name: it ignores SIGTERM" lives $goes
}

# beside NAME COMMAND...: takes a program from its server, and kills it, beside two neighbours.
beside() {
	local name=$1 at
	exact "$rounds" >"$work/exact-$name" 2>&1 &
	local exact=$!
	become --group stays -- "$bin/gct-load" watch --seconds 120 --every-ms 10 >"$work/watch-$name" 2>&1 &
	local watch=$!
	start "$@"
	check "$name: its neighbours work" goes_on "$work/watch-$name"
	at=$(now_ms)
	ctl drain "$name" >"$work/drained" 2>&1
	check "$name: drain succeeds" [ $? = 0 ]
	echo "$name: $(($(now_ms) - at)) ms: $(cat "$work/drained")"
	check "$name: it names the program alone" \
		[ "$(cat "$work/drained")" = "$name: process $goes is no client of MPS any more" ]
	check "$name: the daemon was told so" grep -qE "terminate_client [0-9]+ $goes\$" "$CUDA_MPS_LOG_DIRECTORY/control.log"
	sleep 1
	lives $goes && echo "$name: the program is there, and is killed" || echo "$name: the program has ended"
	kill -KILL $goes 2>/dev/null
	check "$name: it ends" eventually ended $goes
	wait $goes 2>/dev/null
	tail -n 2 "$work/$name" | cut -c-300
	check "$name: its group can be removed" eventually removed "$name"
	check "$name: a neighbour launches on" goes_on "$work/watch-$name"
	check "$name: the other one runs yet" lives $exact
	wait $exact
	check "$name: and ends well" [ $? = 0 ]
	check "$name: each of its blocks ran once, in order" is_right "$work/exact-$name"
	cat "$work/exact-$name"
	(exact 200) >"$work/later" 2>&1
	check "$name: a client that starts later is right, too" is_right "$work/later"
	kill $watch
	wait $watch 2>/dev/null
}

nvidia-cuda-mps-control -d
check "MPS starts" [ $? = 0 ]
check "gctd starts" start_daemon
ctl create stays >/dev/null

# As many rounds as take about half a minute.
(exact 50) >/dev/null
at=$(now_ms)
(exact 50) >/dev/null
short=$(($(now_ms) - at)) at=$(now_ms)
(exact 1050) >"$work/exact"
check "a client of MPS is right" is_right "$work/exact"
long=$(($(now_ms) - at - short))
rounds=$((30000 * 1000 / (long > 100 ? long : 100)))
echo "1000 rounds take $long ms, so there are $rounds"

# Four launches of some milliseconds are always in flight.
beside launches best-effort --blocks 5280 --cycles 2000000 --seconds 100
# A kernel that does not end by itself.
beside persistent persist --seconds 100 --every-ms 50

# Without it, natively and not: what becomes of the neighbour.
killed() {
	local how=$1
	shift
	(exec "$@" "$bin/gct-load" watch --seconds 20 --every-ms 10) >"$work/watch" 2>&1 &
	local watch=$! before
	(exec "$@" "$bin/gct-load" best-effort --blocks 5280 --cycles 2000000 --seconds 100) >/dev/null 2>&1 &
	goes=$!
	sleep 5
	kill -KILL $goes
	sleep 3
	before=$(lines "$work/watch")
	sleep 1
	echo "killed without it, $how: the neighbour $(lives $watch && echo lives || echo has ended)," \
		"$(($(lines "$work/watch") - before)) lines in the fourth second: $(tail -n 1 "$work/watch" | cut -c-200)"
	kill $watch 2>/dev/null
	wait $watch $goes 2>/dev/null
}
killed natively env
echo quit -t 2 | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
nvidia-cuda-mps-control -d
killed "with the library" "$bin/gctctl" run --preload "$bin/libgct_preload.so" --group stays --
grep -E 'terminate_client|Client|fatal|exited' "$CUDA_MPS_LOG_DIRECTORY"/*.log | tail -n 30 | cut -c-200

echo "$passed passed, $failed failed"
[ $failed = 0 ]
