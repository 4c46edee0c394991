#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: moving.sh PROGRAMS [SECONDS]
#
# Checks on a GPU that copies, sets, kernels and graphs of a program see their bytes while its
# pageable memory changes places under gmem.limit: alone, and as a client of MPS. Each of both takes
# SECONDS (20). PROGRAMS is the folder that ci/user.sh has made.
. "$(dirname "$0")/lib.sh"
here=$(dirname "$(realpath "$0")")
seconds=${2:-20}

mib() { echo $(($(get web/0 "$1") >> 20)); }
begin() {
	talk run --group web -- python3 "$here/src/moving.py"
	hear
}
is_empty() { [ "$(mib gmem.current)" = 0 ] && [ "$(mib hmem.current)" = 0 ]; }
is_number() { [ "${1%% *}" -gt 0 ] 2>/dev/null; }
# Changes the limit until it is killed.
press() {
	while :; do
		for less in 400 100 250 50 300; do
			set_ web/0 gmem.limit=$((wants - less))M
			sleep 0.4
		done
	done
}

start_daemon || exit 1
ctl create web >/dev/null
begin
check "the program runs natively: $answer" [ "$answer" = ready ]
native=$(ask attributes) wants=$(mib gmem.current)
made=$(ask 2)
check "natively: $made" is_number "$made"
end
check "its memory is free" eventually is_empty
pageable() {
	set_ web/0 gmem.limit=$((wants - 300))M gmem.pageable=1
	begin
	check "$1: it runs with less memory: $answer" [ "$answer" = ready ]
	check "$1: some of it is on the host" [ "$(mib hmem.current)" -gt 0 ]
	said=$(ask attributes)
	check "$1: libcuda says of it what it says natively" [ "$said" = "$native" ]
	[ "$said" = "$native" ] || printf '%s\n%s\n' "$native" "$said"
	press &
	presser=$!
	echo "$seconds" >&"$to"
	hear
	kill $presser
	made=$answer
	check "$1: all bytes are right: $made" is_number "$made"
	took=$(ask blocked)
	check "$1: it goes on while a stream waits for it: $took ms" [ "${took:-99999}" -lt 20000 ]
	end
	check "$1: its memory is free" eventually is_empty
}
pageable alone
export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
mkdir -p "$work/mps"
nvidia-cuda-mps-control -d
pageable "under MPS"
echo quit | nvidia-cuda-mps-control
sleep 1
grep -i error "$work/mps/server.log" 2>/dev/null | head -5
tail -5 "$work/gctd.log"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
