#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: pageable.sh PROGRAMS [SECONDS]
#
# Checks on a GPU that programs go on beyond gmem.limit when gmem.pageable is 1, and measures a
# training and an inference at 40, 60, 90 and 100% of the memory that they want: natively, refused,
# and pageable. PROGRAMS is the folder that ci/user.sh has made. Each measurement takes SECONDS (8).
. "$(dirname "$0")/lib.sh"
here=$(dirname "$(realpath "$0")")
seconds=${2:-8}

mib() { echo $(($(get web/0 "$1") >> 20)); }
# ask LINE: sends a line to the program, and prints its answer.
ask() {
	echo "$1" >&"$to"
	read -r -t 120 answer <&"$from"
	echo "$answer"
}
# begin KIND: starts the program in the group. Its first answer is `ready` or `out of memory`.
begin() {
	coproc program { run --group web -- python3 "$here/src/pageable.py" "$1"; }
	# Substitutions close the descriptors of a coprocess.
	exec {to}>&"${program[1]}" {from}<&"${program[0]}"
	# The program ends when nothing else holds its input.
	exec {program[1]}>&- {program[0]}<&-
	read -r -t 120 answer <&"$from"
}
end() {
	exec {to}>&- {from}<&-
	wait "$program_PID" 2>/dev/null
}
within() { [ "$(mib gmem.current)" -le "$limit" ]; }
is_empty() { [ "$(mib gmem.current)" = 0 ] && [ "$(mib hmem.current)" = 0 ]; }
say() { echo "        $1: $2 ms a step; GPU $(mib gmem.current) MiB of $limit, host $(mib hmem.current) MiB"; }

start_daemon || exit 1
ctl create web >/dev/null
for kind in infer train; do
	limit=max
	set_ web/0 gmem.limit=max gmem.pageable=0
	begin $kind
	check "$kind runs natively" [ "$answer" = ready ]
	native=$(ask "$seconds") value=$(ask value) wants=$(mib gmem.current)
	say "$kind natively" "$native"
	end
	check "its memory is free" eventually is_empty

	limit=$((wants * 60 / 100))
	set_ web/0 gmem.limit=${limit}M
	begin $kind
	check "$kind at 60% is refused" [ "$answer" = "out of memory" ]
	end
	set_ web/0 gmem.pageable=1 hmem.limit=1G
	begin $kind
	check "$kind beyond both limits is refused" [ "$answer" = "out of memory" ]
	end
	check "its memory is free" eventually is_empty
	set_ web/0 hmem.limit=max

	limit=$((wants * 40 / 100))
	set_ web/0 gmem.limit=${limit}M
	begin $kind
	check "$kind at 40% begins" [ "$answer" = ready ]
	for part in 40 60 90 100 120; do
		limit=$((wants * part / 100))
		set_ web/0 gmem.limit=${limit}M
		say "$kind at $part%" "$(ask "$seconds")"
		check "within the limit" within
	done
	[ $kind = train ] || check "the results are the same bits" [ "$(ask value)" = "$value" ]
	end
	check "its memory is free" eventually is_empty
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
