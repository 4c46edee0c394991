#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Tests profiles of the device plugin on a real GPU with the stock driver: two containers side by
# side, each with the device of a profile. The plugin writes the CDI specs, and src/container.py
# applies them as podman does. Needs root, and no kubelet.
#
#     usage: tests/hw/containers.sh DIR      DIR is the folder that ci/user.sh has made
set -u
. "$(dirname "$0")/lib.sh"
runner=$(dirname "$(realpath "$0")")/src/container.py
declare -A runners

# Version 2 of cgroups: by itself, beside version 1, or mounted here. $root is its root.
cgroups=/sys/fs/cgroup root=/sys/fs/cgroup/unified
[ ! -e $cgroups/cgroup.controllers ] || root=$cgroups
if [ ! -e $root/cgroup.procs ]; then
	cgroups=$work/cgroups root=$work/cgroups
	mkdir "$root"
	mount -t cgroup2 none "$root" || exit 1
	trap 'umount -l "$root"; rmdir "$root"; finish' EXIT
fi

start_plugin() {
	"$bin/gct-device-plugin" serve --dir "$work" --profiles "$work/profiles.toml" --cdi "$work/cdi" \
		--kubelet "$work/kubelet" --state "$work/state" --cgroups "$cgroups" --interval 0.5 \
		>>"$work/plugin.log" 2>&1 &
}
specs() { [ -e "$work/cdi/gctgroup.dev_small.json" ] && [ -e "$work/cdi/gctgroup.dev_large.json" ]; }

# start NAME PROFILE: starts a container, whose shell executes what `inside` sends.
start() {
	mkdir "$work/$1"
	mkfifo "$work/$1/commands"
	python3 "$runner" --id "$(name "$1")" --cgroup "$(cgroup "$1")" --specs "$work/cdi" \
		--device "gctgroup.dev/$2=gpu0" --mount "$bin:/gct" --mount "$work/$1:/io" -- \
		sh -c ': >/io/runs; while read -r line; do eval "$line"; done <>/io/commands' >"$work/$1.log" 2>&1 &
	runners[$1]=$!
	runs_or_ended() { [ -e "$work/$1/runs" ] || ! kill -0 "${runners[$1]}" 2>/dev/null; }
	eventually runs_or_ended "$1"
	[ -e "$work/$1/runs" ]
}
name() { echo "${1}0123456789abcdef"; }
group() { printf 'ctr_%.12s' "$(name "$1")"; }
cgroup() { echo "$root/gct-$$-$1"; }

# inside NAME COMMAND: executes it in a container, prints what it prints, and returns its status.
inside() {
	local io=$work/$1
	rm -f "$io/ended"
	echo "{ $2; } </dev/null >/io/said 2>&1; echo \$? >/io/status; mv /io/status /io/ended" >"$io/commands"
	for _ in $(seq 1200); do
		[ ! -e "$io/ended" ] || break
		sleep 0.05
	done
	cat "$io/said"
	return "$(cat "$io/ended" || echo 124)"
}
refuses() { ! inside "$@" >/dev/null; }
# watches NAME: starts a program in a container that says how many SMs its launches use.
watches() { inside "$1" '(gct-load watch --seconds 600 --every-ms 10 >/io/watch 2>/io/watch.log &)'; }
# sms_of NAME: the SMs on which a launch in a container ran, one a line.
sms_of() { inside "$1" 'gct-load sms' | grep -oE '"[0-9]+":' | sort; }
# member NAME: prints the pid of the container's program, if it is the only member of its group.
member() { get "$(group "$1")" group.procs; }
# is_the_watch NAME: the member runs in the container: in its cgroup, and in a pid namespace.
is_the_watch() {
	local pid
	pid=$(member "$1") || return
	[ "$(cat "/proc/$pid/comm")" = gct-load ] && grep -q "^0::.*/gct-$$-$1$" "/proc/$pid/cgroup" &&
		[ "$(sed -n 's/^NSpid:\s*//p' "/proc/$pid/status" | wc -w)" = 2 ]
}
# rewrites NAME: its library has told that it rewrites launches.
rewrites() { get "$(group "$1")/0" compute.stat | grep -qE '^rewritten [1-9]'; }
# has NAME FILE VALUE [POOL]
has() { [ "$(get "$(group "$1")${4-/0}" "$2")" = "$3" ]; }
goes_on() {
	local before
	before=$(lines "$work/$1/watch")
	more() { [ "$(lines "$work/$1/watch")" -gt $(($2 + 5)) ]; }
	eventually more "$1" "$before"
}
no_group() { ! ctl ls | grep -q "$(group "$1")"; }
no_record() { ! grep -rq "$(group "$1")" "$work/state"; }

echo "SMs natively: $("$bin/gct-load" sms | tr , '\n' | wc -l)"
check "the daemon starts" start_daemon
tpcs=$(get gpus/0 tpcs)
small=$((tpcs / 4)) large=$((tpcs - tpcs / 4))
cat >"$work/profiles.toml" <<PROFILES
[profile.small]
gmem.limit = "4G"
tpc.quota = $small
tpc.steal = 0
[profile.large]
gmem.limit = "12G"
tpc.quota = $large
tpc.steal = 0
PROFILES
start_plugin
check "the plugin writes the specs of two profiles, without a kubelet" eventually specs

check "a container of the small profile starts" start left small
check "beside it one of the large profile" start right large
for name in left right; do
	check "$name: its group is bound to its cgroup" has $name group.cgroup "/gct-$$-$name" ""
	check "$name: a program runs in it" watches $name
	# A container has no cache of compiled kernels.
	check "$name: its launches run" patiently sms_over "$work/$name/watch" 0
	check "$name: the program is its group's only member" eventually is_the_watch $name
done
# Alone, left has all TPCs: no group with a process reserves any.
for name in left right; do
	check "$name: launches are rewritten" eventually rewrites $name
done
check "the small profile's limits are the group's" has left gmem.limit $((4 << 30))
check "the large profile's are the other's" has right tpc.quota $large

# Quotas that nobody borrows from: each has its TPCs, and the other none of them.
check "left sees a GPU of its quota" grep -q "\"sms\":$((2 * small))\b" <(inside left 'gct-load device')
check "right sees a GPU of its quota" grep -q "\"sms\":$((2 * large))\b" <(inside right 'gct-load device')
sms_of left >"$work/left.sms"
sms_of right >"$work/right.sms"
echo "SMs: $(lines "$work/left.sms") of $((2 * small)) and $(lines "$work/right.sms") of $((2 * large))"
check "left ran on the SMs of its quota" [ "$(lines "$work/left.sms")" = $((2 * small)) ]
check "right ran on the SMs of its quota" [ "$(lines "$work/right.sms")" = $((2 * large)) ]
check "they share no SM" [ -z "$(comm -12 "$work/left.sms" "$work/right.sms")" ]

# The limit holds two contexts, too.
said=$(inside left 'gct-load memory --mib 6144')
echo "gmem.limit 4G: $said"
check "left is refused memory beyond its limit" \
	grep -qE '"mib":(2[5-9]|3[0-9])[0-9]{2},"error":"CUDA_ERROR_OUT_OF_MEMORY"' <<<"$said"
check "right gets that much" grep -q '"mib":6144,"error":null' <(inside right 'gct-load memory --mib 6144')
if command -v nvidia-smi >/dev/null; then
	smi='nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits'
	check "nvidia-smi shows left its limit" [ "$(inside left "$smi")" = 4096 ]
fi

# A container reads the tree, and writes none of it.
own=$(group left)
check "left can read its limit" [ "$(inside left "gctctl --user get $own/0 gmem.limit")" = $((4 << 30)) ]
for door in /run/gctgroup /run/gctgroup/tenants "$work"; do
	check "left cannot raise it by $door" refuses left "GCTGROUP_DIR=$door gctctl --user set $own/0 gmem.limit=max"
done
inside left 'mkdir /tmp/door && ln -s /run/gctgroup/tenants/gctd.sock /tmp/door/admin.sock'
check "nor by the tenants' socket" refuses left "GCTGROUP_DIR=/tmp/door gctctl --user set $own/0 gmem.limit=max"
check "nor join another group" refuses left "GCTGROUP_DIR=/tmp/door gctctl --user attach $(group right) --pid \$\$"
check "nor mount the cgroups" refuses left 'mkdir /tmp/cgroups && mount -t cgroup2 none /tmp/cgroups'
check "its limit is what it was" has left gmem.limit $((4 << 30))

check "a container whose quota does not fit does not start" eval '! start third large'
grep -v '^$' "$work/third.log"
check "it has no group" no_group third

# gctd restarts. The plugin makes the groups of running containers again.
kill -9 $daemon
wait $daemon 2>/dev/null
check "a new daemon starts" start_daemon
for name in left right; do
	check "$name: it has its group again" eventually has $name tpc.steal 0
	check "$name: its program is a member again" eventually is_the_watch $name
done
check "left keeps to its quota" eventually sms_at_most "$work/left/watch" $((2 * small))
check "right keeps to its quota" eventually sms_at_most "$work/right/watch" $((2 * large))

# One of them ends.
kill "${runners[left]}"
wait "${runners[left]}" 2>/dev/null
check "a stopped container's group is gone" no_group left
check "its record is gone" no_record left
check "the other runs on" goes_on right
check "its group is the same" is_the_watch right
check "it has the TPCs that are nobody's now" eventually sms_over "$work/right/watch" $((2 * large))

# The runtime dies with its container, and calls no hook.
check "a container starts in its place" start next small
kill -9 "${runners[next]}"
wait "${runners[next]}" 2>/dev/null
check "without a runtime its cgroup is empty" eventually rmdir "$(cgroup next)"
gone() { no_group next && no_record next; }
check "the plugin removes its group" eventually gone
check "the other runs on" goes_on right
kill "${runners[right]}"
wait "${runners[right]}" 2>/dev/null

check "nothing was left to the stock driver" [ -z "$(get . events | grep -v ' 0$')" ]
[ $failed = 0 ] || tail -n 20 "$work"/*.log "$work"/*/watch.log
echo "$passed passed, $failed failed"
[ $failed = 0 ]
