# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The part of the demo in which limits bind launches. demo.sh sources it.

# start NAME PROGRAM BLOCKS: runs a program that launches grids, as a member of the group NAME.
# $launched is its process, one of $programs.
start() {
	rm -f "/tmp/$1"
	echo " # rm-launch /tmp/$1 $2 $3 &              in the group \"$1\""
	sh -c "echo 0 >$1/group.procs; exec rm-launch /tmp/$1 $2 $3" &
	launched=$!
	programs="$programs $launched"
	more "$1" 2
}

# stop PROCESS...: ends programs.
stop() {
	local one
	echo " # kill $*"
	kill "$@" || fail "a program has ended"
	for one in "$@"; do
		wait "$one" 2>/dev/null
		programs=$(echo "$programs" | sed "s/ $one//")
	done
}

# more NAME COUNT: waits until that program has launched so much more.
more() {
	local from now
	from=$(cat "/tmp/$1" 2>/dev/null)
	from=$((${from:-0} + $2))
	for _ in $(seq 3000); do
		now=$(cat "/tmp/$1" 2>/dev/null)
		[ "${now:-0}" -lt "$from" ] || return 0
		sleep 0.02
	done
	fail "the program in \"$1\" launches nothing"
}

# waits_for NAME OTHER: checks that the program in NAME completes nothing while that in OTHER has
# work. On a slow host the other may run out of work for a moment: then this looks again.
waits_for() {
	local from now
	for _ in $(seq 20); do
		from=$(cat "/tmp/$1")
		more "$2" 5
		now=$(cat "/tmp/$1")
		[ -z "$now" ] || [ "$now" != "$from" ] || break
	done
	[ "$now" = "$from" ] || fail "the program in \"$1\" does not wait"
	echo "   $2 has completed 5 launches, $1 none"
}

# recorded ARGUMENT...: fakegpu-record, while the programs stand still: the device forgets old
# events.
recorded() {
	[ -z "$programs" ] || kill -STOP $programs
	fakegpu-record "$@" || fail "the recorder has forgotten what is asked"
	[ -z "$programs" ] || kill -CONT $programs
}

# launches MARK PROGRAM PATTERN COUNT: prints so many of the last launches since a mark. All of
# these must match.
launches() {
	find_launches "$@" || fail "a launch is not as \"$3\""
	print_launches "$@"
}

find_launches() {
	recorded launches "$1" "$2" "$existing" >/tmp/recorded
	tail -n "$4" /tmp/recorded >/tmp/launches
	[ "$(grep -c "$3" /tmp/launches)" -eq "$4" ]
}

print_launches() {
	echo " # fakegpu-record launches $1 $2 | tail -n $4"
	cat /tmp/launches
}

# settles NAME PROGRAM PATTERN COUNT: the same for launches to come of the program in NAME, beside
# another. On a slow host the other may be silent for a moment: then this looks again.
settles() {
	local mark tries=0
	mark=$(fakegpu-record mark)
	more "$1" 10
	until find_launches "$mark" "$2" "$3" "$4"; do
		tries=$((tries + 1))
		[ $tries -lt 20 ] || fail "a launch is not as \"$3\""
		mark=$(fakegpu-record mark)
		more "$1" 10
	done
	print_launches "$mark" "$2" "$3" "$4"
}

# tpcs_of LIST: prints the numbers of a list, such as 0-3,9, a line each.
tpcs_of() {
	echo "$1" | tr , '\n' | awk -F- '/^[0-9]/ { for (tpc = $1 + 0; tpc <= $NF + 0; tpc++) print tpc }'
}

# without LIST LIST: prints the first list without the TPCs of the second one.
without() {
	{ tpcs_of "$2"; echo; tpcs_of "$1"; } | awk '
		!/./ { all = 1; next }
		!all { gone[$1] = 1; next }
		!($1 in gone) {
			if (count && $1 == last + 1) { last = $1; next }
			if (count) printf "%s%s", (last > first ? "-" last : ""), ","
			printf "%s", $1; first = last = $1; count = 1
		}
		END { print (last > first ? "-" last : "") }'
}

title "9. Limits on launches"
programs=
existing=$(cat gpus/0/tpcs.list)
say "Two programs launch grids of 13200 blocks, a millisecond each. The driver owns the rings of"
say "their channels, so limits bind also those who would rather not have them."
shown "echo create left >control; echo create right >control"
shown "echo 1 >left/0/channel.owned; echo 1 >right/0/channel.owned"
start left 0x5000 13200
left=$launched
start right 0x6000 13200
right=$launched

say "A mask binds the next launch:"
shown "echo 0-7 >left/0/tpc.mask"
mark=$(fakegpu-record mark)
more left 10
launches "$mark" 0x5000 ' TPCs 0-7$' 2
shown "echo all >left/0/tpc.mask"

say "A quota is lent while its owner is silent, and comes back with its owner:"
shown "echo 22 >left/0/tpc.quota"
shown "cat left/0/tpc.reserved"
others=$(without "$existing" "$(cat left/0/tpc.reserved)")
[ "$(tpcs_of "$others" | wc -l)" -eq $(($(tpcs_of "$existing" | wc -l) - 22)) ] || fail "22 TPCs are not reserved"
picture=$(fakegpu-record mark)
settles right 0x6000 " TPCs $others\$" 2
stop "$left"
settles right 0x6000 " TPCs $existing\$" 2
start left 0x5000 13200
left=$launched
settles right 0x6000 " TPCs $others\$" 2
recorded picture "$picture" "$existing" L=0x5000 R=0x6000 >/tmp/picture
stop "$left"
shown "echo none >left/0/tpc.quota"

say "A long grid arrives in atoms, so that others need not wait for its end:"
start left 0x5000 132000
left=$launched
shown "echo 100 >left/0/atom.duration"
more left 6
mark=$(fakegpu-record mark)
more left 6
launches "$mark" 0x5000 'blocks \[' 4
shown "grep -E '^(split|atoms)' left/0/compute.stat"
[ "$(sed -n 's/^atoms //p' left/0/compute.stat)" -ge 100 ] || fail "few atoms"
stop "$left"
shown "echo off >left/0/atom.duration"

say "An owner of an earlier priority goes first. Its neighbour waits while it has work, and runs on"
say "when it has none:"
shown "echo 0 >left/0/compute.priority"
start left 0x5000 1320000
left=$launched
waits_for right left
shown "grep held_usec.tpcs right/0/compute.stat"
stop "$left"
more right 10
stop "$right"

say "A hostile tenant submits 13200 blocks, and makes them 26400 before the GPU reads them. The GPU"
say "executes what the driver has read, under its mask:"
shown "echo 0-7 >left/0/tpc.mask"
mark=$(fakegpu-record mark)
shown "sh -c 'echo 0 >left/group.procs; exec rm-launch rewrites 0x5000 13200'"
launches "$mark" 0x5000 'blocks \[0,13200)x\[0,1)x\[0,1)  TPCs 0-7$' 1
shown "echo remove left >control; echo remove right >control"
