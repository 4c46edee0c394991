# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The part of the demo in which a limit binds managed memory. demo.sh sources it. It uses works() of
# demo-work.sh.

# at_most BYTES FILE: prints the file, which must hold no larger number.
at_most() {
	echo " # cat $2"
	cat "$2"
	[ "$(cat "$2")" -le "$1" ] || fail "$2 exceeds $1"
}

title "8. Managed memory beyond a limit"
say "A tenant may have 64 MiB of the GPU. It writes a word into each page of 256 MiB, moves all to the"
say "GPU, and checks each word; again with other words. Its neighbour does the same with 16 MiB."
shown "echo create small >control; echo create beside >control"
shown "echo 64M >small/0/gmem.limit"
echo " # rm-managed /tmp/small 256 & rm-managed /tmp/beside 16 &     in the groups \"small\", \"beside\""
sh -c 'echo 0 >beside/group.procs; exec rm-managed /tmp/beside 16' &
beside=$!
works /tmp/beside
sh -c 'echo 0 >small/group.procs; exec rm-managed /tmp/small 256' &
small=$!
works /tmp/small
say "It was never beyond its limit: what had no room went to the host, and came back with its content."
at_most 67108864 small/0/gmem.peak
shown "grep . small/0/gmem.events"
[ "$(sed -n 's/^evicted //p' small/0/gmem.events)" -ge 96 ] || fail "less than 192 MiB were evicted"
say "Its neighbour's memory stayed on the GPU:"
shown "grep uvm beside/0/gmem.stat"
[ "$(sed -n 's/^uvm //p' beside/0/gmem.stat)" -eq 16777216 ] || fail "the neighbour has lost memory"
[ "$(sed -n 's/^evicted //p' beside/0/gmem.events)" -eq 0 ] || fail "the neighbour was evicted"

say "A lower limit holds when the write returns, while the tenant runs on:"
shown "echo 32M >small/0/gmem.limit"
at_most 33554432 small/0/gmem.current
shown "echo 0 >small/0/gmem.peak"
works /tmp/small
at_most 33554432 small/0/gmem.peak
say "Below what cannot leave, as the memory of its channels, the old limit stays:"
refused 'busy' 'echo 64K >small/0/gmem.limit'
holds 33554432 small/0/gmem.limit
shown "kill $small $beside"
wait "$small" "$beside" 2>/dev/null
shown "echo remove small >control; echo remove beside >control"
