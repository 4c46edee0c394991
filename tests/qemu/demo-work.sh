# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The part of the demo in which tenants work on the GPU. demo.sh sources it.

# works FILE: checks that a tenant completes further work.
works() {
	local before now=
	before=$(cat "$1" 2>/dev/null)
	for _ in $(seq 600); do
		now=$(cat "$1" 2>/dev/null)
		[ -z "$now" ] || [ "$now" = "$before" ] || break
		sleep 0.1
	done
	[ -n "$now" ] && [ "$now" != "$before" ] || fail "no work is completed ($1)"
	echo "   $(basename "$1"): $now pieces of work completed"
}

# gone PATH: checks that the path disappears by itself.
gone() {
	for _ in $(seq 600); do
		[ -e "$1" ] || break
		sleep 0.1
	done
	[ ! -e "$1" ] || fail "$1 is still there"
	echo " # ls $1"
	echo "ls: $1: No such file or directory"
}

title "7. Two tenants work"
mark=$(fakegpu-record mark) || fail "the software GPU does not show its recorder"
say "Each opens the GPU, allocates a channel group with a channel, and submits work."
say "The first one initialises the GPU. One of them is a member of \"web\"."
echo " # rm-tenant /tmp/one & rm-tenant /tmp/two &"
sh -c 'echo 0 >web/group.procs; exec rm-tenant /tmp/one' &
one=$!
rm-tenant /tmp/two &
two=$!
works /tmp/one
works /tmp/two
say "The tree shows their usage, by process and by group."
shown "grep . $one/0/compute.stat $two/0/compute.stat"
shown "grep channel web/0/compute.stat"
say "The driver's requests to the GPU:"
echo " # fakegpu-record since $mark | grep CHANNEL_GROUP_A"
fakegpu-record since "$mark" | grep '"alloc".*KEPLER_CHANNEL_GROUP_A\|NVA06C_CTRL_CMD_GPFIFO_SCHEDULE' | cut -c1-150

say "RM sends a time slice to the GPU:"
mark=$(fakegpu-record mark)
shown "echo 2000 >$one/0/compute.timeslice"
holds 2000 "$one/0/compute.timeslice"
echo " # fakegpu-record since $mark TIMESLICE"
fakegpu-record since "$mark" TIMESLICE | grep . || fail "no control was sent"
say "A frozen tenant stops, and the other runs on."
shown "echo 1 >$one/0/compute.freeze"
sleep 0.5
still=$(cat /tmp/one)
works /tmp/two
[ "$(cat /tmp/one)" = "$still" ] || fail "the frozen tenant ran on"
echo "   one: $still pieces of work completed, as before"
shown "echo 0 >$one/0/compute.freeze"
works /tmp/one
say "Killing one frees its objects, and the other runs on."
shown "kill -9 $one"
gone "$one"
works /tmp/two
shown "kill $two"
gone "$two"
