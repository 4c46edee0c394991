#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Tests gctd on a real GPU with the stock driver: limits are set, change while a program runs, and
# survive the death of either side.
#
#     usage: tests/hw/daemon.sh DIR      gctd, gctctl, gct-load and libgct_preload.so are in DIR
set -u
. "$(dirname "$0")/lib.sh"

native=$("$bin/gct-load" sms | tr , '\n' | wc -l)
echo "SMs natively: $native"

check "the daemon starts" start_daemon
check "it finds the GPU" grep -qE "H[12]00" <(ctl ls)
echo "features: $(get gpus/0 features | tr '\n' ' ')"

# A mask from the start.
masked=$(run --group masked --tpc 0-31 -- "$bin/gct-load" sms | tr , '\n' | wc -l)
echo "SMs with tpc.mask 0-31: $masked"
check "a program keeps to its mask" [ "$masked" -le 64 -a "$masked" -gt 0 ]
check "its launches are counted" grep -qE '^launches [1-9]' <(get masked/0 compute.stat)
check "they were rewritten" grep -qE '^rewritten [1-9]' <(get masked/0 compute.stat)
# TPC numbers have holes: tpc.effective lists those of the mask that exist, each with two SMs.
tpcs_of() { tr , '\n' <<<"$1" | awk -F- '{ n += ($2 == "" ? $1 : $2) - $1 + 1; if ($NF > 31) exit 1 } END { print n }'; }
effective=$(get masked/0 tpc.effective)
echo "tpc.effective with tpc.mask 0-31: $effective"
check "tpc.effective is what it was given" [ "$(tpcs_of "$effective")" = $((masked / 2)) ]
get masked/0 compute.stat | tr '\n' ' '
echo

# Limits that change while a program runs.
watch live 12 >"$work/live" &
check "a program without a limit has all SMs" eventually sms_over "$work/live" $((native - 1))
live=$(process_of live)
check "its directory is there" grep -q "^$live" <(ctl ls)
set_ live tpc.mask=0-7
check "a new mask holds while it runs" eventually sms_at_most "$work/live" 16
set_ live tpc.mask=all
check "without it all SMs are back" eventually sms_over "$work/live" $((native - 1))
set_ "$live" tpc.mask=0-3
check "the process's own mask holds too" eventually sms_at_most "$work/live" 8
set_ "$live" tpc.mask=all

# The same for a CUDA graph that is stored once, by its first launch or before, and then replayed.
graph_follows_its_mask() {
	run --group graph -- "$bin/gct-load" watch --graph $1 --seconds 9 --every-ms 10 >"$work/graph" &
	check "a graph without a limit has all SMs" eventually sms_over "$work/graph" $((native - 1))
	for tpcs in 8 2 32; do
		set_ graph tpc.mask=0-$((tpcs - 1))
		check "its next replays keep to $tpcs TPCs" eventually sms_at_most "$work/graph" $((2 * tpcs))
	done
	set_ graph tpc.mask=all
	check "without a mask all SMs are the graph's again" eventually sms_over "$work/graph" $((native - 1))
	get graph/0 compute.stat | tr '\n' ' '
	echo
	kill "$(process_of graph)"
}
graph_follows_its_mask --upload
graph_follows_its_mask ""

set_ live compute.freeze=1
# A published launch runs to its end.
sleep 0.3
before=$(lines "$work/live")
sleep 1
check "a frozen program launches nothing" [ "$(lines "$work/live")" = "$before" ]
set_ live compute.freeze=0
more_lines() { [ "$(lines "$work/live")" -gt $((before + 5)) ]; }
check "thawed, it goes on" eventually more_lines
kill -9 "$live"
gone() { ! ctl ls | grep -q "^$live"; }
empty() { [ "$(get live group.procs)" = "" ] && [ "$(get live/0 gmem.current)" = 0 ]; }
check "killed, its directory goes" eventually gone
check "and nothing of it is charged" eventually empty

# Atoms: blocks of 20000 cycles in 40 waves, about 400 us.
run --group atoms --atom 50us -- "$bin/gct-load" best-effort --blocks 42240 --seconds 1
check "launches longer than atom.duration are split" grep -qE '^split [1-9]' <(get atoms/0 compute.stat)
get atoms/0 compute.stat | tr '\n' ' '
echo

# A time slice takes effect before the write returns. Removing it restores the program's own.
watch slice 6 >"$work/slice" &
check "a program runs whose time slice is to change" eventually sms_over "$work/slice" 1
for slice in 50 2000 default; do
	check "its time slice becomes $slice" set_ slice/0 compute.timeslice=$slice
	check "and reads so" [ "$(get slice/0 compute.timeslice)" = $slice ]
done
slice=$(process_of slice)
kill -STOP "$slice"
unbound() { get slice/0 compute.stat | grep -qx "unbound $1"; }
check "a stopped program does not veto a time slice" set_ slice/0 compute.timeslice=50
check "and counts as unbound" unbound 1
kill -CONT "$slice"
check "until it goes on and takes it" eventually unbound 0
kill "$slice"

# A quota beside a best-effort neighbour: reserved while its owner works, lent afterwards. The two
# take turns on the GPU, or share it under MPS. In both cases each keeps to its TPCs.
ctl create first >/dev/null
set_ first tpc.quota=20
watch first 4 >"$work/first" &
check "the owner of a quota may use all TPCs" eventually sms_over "$work/first" $((native - 1))
watch second 9 >"$work/second" &
check "its neighbour keeps off what is reserved" eventually sms_at_most "$work/second" $((native - 20))
check "and still works" sms_over "$work/second" 0
check "when the owner has ended all is the neighbour's" eventually sms_over "$work/second" $((native - 1))
kill "$(process_of second)"

# Memory, by each of CUDA's allocators.
ctl create mem >/dev/null
set_ mem gmem.limit=2G
for way in alloc async pitch create array managed; do
	said=$(run --group mem -- "$bin/gct-load" memory --way $way --mib 4096)
	free=$(run --group free -- "$bin/gct-load" memory --way $way --mib 4096)
	echo "gmem.limit 2G: $said; without: $free"
	check "$way: 4 GiB can be had without a limit" grep -q '"mib":4096,"error":null' <<<"$free"
	check "$way: over the limit it gets no more" \
		grep -qE '"mib":(1[0-9]{3}|20[0-4][0-9]),"error":"CUDA_ERROR_OUT_OF_MEMORY"' <<<"$said"
done
mem_is_free() { [ "$(get mem/0 gmem.current)" = 0 ]; }
check "when they have ended nothing is charged" eventually mem_is_free
echo "$(get mem/0 gmem.events), peak $(get mem/0 gmem.peak)"

# Managed memory is charged while it exists. No other mapping of the UVM driver is charged.
mkfifo "$work/hold"
run --group held -- "$bin/gct-load" memory --way managed --mib 256 --hold <"$work/hold" >"$work/held" &
exec 7>"$work/hold"
uvm_is() { [ "$(get held/0 gmem.stat | sed -n 's/^uvm //p')" = "$1" ]; }
check "256 MiB of managed memory are shown as such" eventually uvm_is $((256 << 20))
get held/0 gmem.stat | tr '\n' ' '
echo "gmem.current $(get held/0 gmem.current)"
check "and charged beside what its context has" [ "$(get held/0 gmem.current)" -gt $((512 << 20)) ]
echo >&7
check "freed, none is" eventually uvm_is 0
check "and its program goes on" [ "$(process_of held)" ]
exec 7>&-

# The cost of a charge: 512 allocations of 2 MiB each.
took() {
	local begin
	begin=$(date +%s%N)
	"${@:2}" >/dev/null
	echo "$1: $((($(date +%s%N) - begin) / 1000000)) ms"
}
few=("$bin/gct-load" memory --mib 2 --step-mib 2)
many=("$bin/gct-load" memory --mib 1024 --step-mib 2)
alone=(env GCTGROUP_SOCKET=/nowhere GCTGROUP_OPTIONAL=1 LD_PRELOAD="$bin/libgct_preload.so")
for _ in 1 2 3; do
	took "1 allocation, native" "${few[@]}"
	took "1 allocation, preloaded without a daemon" "${alone[@]}" "${few[@]}"
	took "1 allocation, governed" run --group free -- "${few[@]}"
	took "512 allocations, native" "${many[@]}"
	took "512 allocations, preloaded without a daemon" "${alone[@]}" "${many[@]}"
	took "512 allocations, governed" run --group free -- "${many[@]}"
done

# Exactness while limits change all the time.
ctl create exact >/dev/null
run --group exact --tpc 0-63 -- "$bin/gct-load" exact --rounds 400 >"$work/exact" 2>&1 &
exact=$!
for n in $(seq 40); do
	set_ exact tpc.mask=0-$((n % 60 + 2))
	kill -0 $exact 2>/dev/null || break
done
wait $exact
check "every block ran once while masks changed" [ $? = 0 ]
cat "$work/exact"
get exact/0 compute.stat | tr '\n' ' '
echo

# The daemon is killed. The last limits stay in force, and a new daemon takes over.
run --group stays --tpc 0-7 -- "$bin/gct-load" watch --seconds 15 --every-ms 10 >"$work/stays" &
check "a masked program runs" eventually sms_at_most "$work/stays" 16
stays=$(process_of stays)
kill -9 $daemon
wait $daemon 2>/dev/null
sleep 1
before=$(lines "$work/stays")
sleep 0.5
check "without a daemon it goes on" [ "$(lines "$work/stays")" -gt "$before" ]
check "under the last limits" sms_at_most "$work/stays" 16
check "a new daemon starts where the old one was killed" start_daemon
back() { ctl ls | grep -q "^$stays"; }
check "the program comes to it" eventually back
check "which has kept its group's limit" [ "$(get stays/0 tpc.mask)" = 0-7 ]
check "and its membership" [ "$(process_of stays)" = "$stays" ]
set_ stays tpc.mask=all
check "and can lift it" eventually sms_over "$work/stays" $((native - 1))
set_ "$stays" tpc.mask=0-3
check "and can set one" eventually sms_at_most "$work/stays" 8
grep -v '"' "$work/stays"
kill "$stays"

# A program that started without a daemon connects to one that starts later.
kill -9 $daemon
wait $daemon 2>/dev/null
refused() {
	LD_PRELOAD=$bin/libgct_preload.so "$bin/gct-load" sms >/dev/null 2>"$work/refused"
	[ $? = 78 ] && grep -q 'the program is stopped' "$work/refused"
}
check "no program starts without the daemon that it names" refused
GCTGROUP_OPTIONAL=1 LD_PRELOAD=$bin/libgct_preload.so "$bin/gct-load" watch --seconds 10 --every-ms 10 >"$work/early" &
early=$!
check "one starts whose limits are optional" eventually sms_over "$work/early" $((native - 1))
start_daemon
found() { ctl ls | grep -q "^$early"; }
check "it finds one that comes later" eventually found
set_ "$early" tpc.mask=0-3
check "and takes its limits" eventually sms_at_most "$work/early" 8
kill $early
wait $early 2>/dev/null

# The tree as files, if this machine has FUSE.
if [ -e /dev/fuse ]; then
	kill $daemon
	wait $daemon
	mkdir "$work/tree"
	start_daemon --mount "$work/tree"
	echo create files >"$work/tree/control"
	echo 0-3 >"$work/tree/files/0/tpc.mask"
	check "the tree is shown through FUSE" [ "$(cat "$work/tree/files/0/tpc.mask")" = 0-3 ]
else
	echo "no /dev/fuse here: the tree is on the socket only"
fi

check "nothing was left to the stock driver" [ -z "$(get . events | grep -v ' 0$')" ]
get . events | tr '\n' ' '
echo
echo "$passed passed, $failed failed"
[ $failed = 0 ]
