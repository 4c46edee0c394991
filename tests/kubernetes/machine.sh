#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine's node: pods that a scheduler places, on the patched driver, the software GPU
# and cgroup version 2 alone. The control plane is outside of the machine (machine-control.sh). The
# device plugin is the only one that writes limits. Prints KTAP.
export PATH=/bin HOME=/root KUBECONFIG=/etc/kubeconfig
GCT=/sys/kernel/debug/gctgroup
RECORDS=/run/gctgroup-kubernetes
PODS=/api/v1/namespaces/default/pods
# This machine's address in the network of the runner.
ADDRESS=10.0.2.15
WAIT=300

tests=0
result() {
	tests=$((tests + 1))
	printf '%s %d %s\n' "$1" $tests "$2"
}

# A failure ends the script, for what follows builds on it: a plan that is not kept fails, too.
until_true() {
	local what=$1 start
	start=$(date +%s)
	shift
	while ! "$@" >/tmp/last 2>&1; do
		if [ $(($(date +%s) - start)) -ge $WAIT ]; then
			result "not ok" "$what"
			cat /tmp/last
			tail -n 15 /var/log/kubelet.log /var/log/plugin.log /var/log/containerd.log
			exit 1
		fi
		sleep 0.5
	done
	result ok "$what"
}

is() {
	[ "$1" = "$2" ] || { echo "is $1, not $2"; return 1; }
}

# A pod's log, without the runtime's stamps.
log_of() {
	cut -d' ' -f4- /var/log/pods/default_"$1"_*/main/0.log
}

says() {
	is "$(log_of "$1")" "$2"
}

group_of() {
	ls $GCT | grep "^k8s_default_$1_main_"
}

limit() {
	is "$(cat "$GCT/$(group_of "$1")/0/$2")" "$3"
}

# With --raw kubectl does not first read all that the API server knows.
get() {
	kubectl get --raw "$1"
}

# pod NAME PROGRAM: a pod that asks for the profile. It asks for memory, and then for more than it
# has. Then it launches grids of that program without end: two clients would share the time slice.
# It has the node's network, for the node has no other.
pod() {
	local work="rm-pod 16 64 >/out & until busybox grep -q refused /out; do sleep 1; done"
	work="$work; busybox cat /out; exec rm-launch /launched $2 13200"
	cat >/tmp/pod.json <<-POD
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$1"}, "spec": {
			"hostNetwork": true, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
			"containers": [{
				"name": "main", "image": "localhost/pod:1", "imagePullPolicy": "Never",
				"command": ["busybox", "sh", "-c", "$work"],
				"resources": {"limits": {"gctgroup.dev/quota": "1"}}}]}}
	POD
	kubectl create --raw $PODS -f /tmp/pod.json >/dev/null
}

# remove NAME...: deletes pods.
remove() {
	local name
	for name; do
		kubectl delete --raw "$PODS/$name" >/dev/null
	done
}

phase() {
	is "$(get "$PODS/$1" | grep -o '"phase":"[A-Za-z]*"')" "\"phase\":\"$2\""
}

# The scheduler has found no node for a pod.
waits_for_a_slot() {
	phase "$1" Pending && get "$PODS/$1" | grep -q 'Insufficient gctgroup.dev/quota'
}

node_is_ready() {
	get /api/v1/nodes/node1 | grep -o '{"type":"Ready"[^}]*' | grep '"status":"True"'
}

node_offers() {
	get /api/v1/nodes/node1 | grep -o '"allocatable":{[^}]*' | grep "\"gctgroup.dev/quota\":\"$1\""
}

# A pod's program works, and has the memory of its profile only.
works() {
	says "$1" "10 pieces of work done
time slice 1000 us
16 MiB granted
64 MiB refused"
}

# works_again NAME PROGRAM: the same. A kubelet that has just started turns pods away until it has
# the plugin's list, so the pod is made again.
works_again() {
	works "$1" && return
	phase "$1" Failed && remove "$1" && pod "$@"
	return 1
}

# The TPCs of a list such as 0-3,8, one a line; nothing for `none`.
tpcs_of() {
	echo "$1" | tr , '\n' | awk -F- '/^[0-9]/ { for (tpc = $1 + 0; tpc <= $NF + 0; tpc++) print tpc }'
}

reserved() {
	cat "$GCT/$(group_of "$1")/0/tpc.reserved"
}

reserves() {
	is "$(tpcs_of "$(reserved "$1")" | wc -l)" 22
}

# yields PROGRAM POD: the GPU runs launches of the program, none of them on the TPCs of the pod. The
# programs stand still while nobody looks at them: they would take the kubelet's time, and the
# recorder forgets.
yields() {
	local mark list
	reserves "$2" || return 1
	tpcs_of "$(reserved "$2")" >/tmp/reserved
	mark=$(fakegpu-record mark)
	kill -CONT $(pidof rm-launch)
	sleep 1
	kill -STOP $(pidof rm-launch)
	fakegpu-record launches "$mark" "$1" "$(cat $GCT/gpus/0/tpcs.list)" |
		sed 's/.* TPCs //' | sort -u >/tmp/launches
	cat /tmp/launches
	[ -s /tmp/launches ] || return 1
	while read -r list; do
		tpcs_of "$list" | grep -qxFf /tmp/reserved && return 1
	done </tmp/launches
	return 0
}

only_version_2() {
	is "$(grep -c ' cgroup ' /proc/mounts)" 0 && [ -e /sys/fs/cgroup/cgroup.controllers ]
}

bound() {
	local path
	path=$(cat "$GCT/$(group_of "$1")/group.cgroup")
	[ "$path" != none ] && [ -d "/sys/fs/cgroup$path" ] && grep -q . "/sys/fs/cgroup$path/cgroup.procs"
}

# The pod's process is charged, and so is its group.
charged() {
	[ "$(cat "$GCT/$(group_of "$1")/0/gmem.current")" -ge 16777216 ]
}

none_left() {
	is "$(ls $GCT | grep -c ^k8s_)" 0 && is "$(ls $RECORDS)" lock
}

start_plugin() {
	gct-device-plugin serve --interval 1 >>/var/log/plugin.log 2>&1 &
	plugin=$!
}

start_kubelet() {
	kubelet --config /etc/kubelet.yaml --kubeconfig=$KUBECONFIG --docker=tcp://127.0.0.1:2375 \
		--container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
		--hostname-override=node1 --node-ip=$ADDRESS >>/var/log/kubelet.log 2>&1 &
	kubelet=$!
}

mount --make-rshared /
mkdir -p /var/log /var/lib/kubelet /var/lib/containerd /run/containerd /run/docker/v1.24
: >/etc/resolv.conf
printf '127.0.0.1 localhost\n%s node1\n' $ADDRESS >/etc/hosts
ip link set lo up
ip link set eth0 up
ip addr add $ADDRESS/24 dev eth0
ip route add default via 10.0.2.2
# As in cluster.sh: the kubelet looks for docker.
echo '{"DockerRootDir": "/nowhere"}' >/run/docker/v1.24/info
httpd -p 127.0.0.1:2375 -h /run/docker
# Without a network for pods the node is not ready. They all have the node's.
mkdir -p /etc/cni/net.d
echo '{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}' >/etc/cni/net.d/none.conflist
containerd >/var/log/containerd.log 2>&1 &
containerd=$!

# The driver knows the TPCs of a GPU that a client has opened once, and enforces quotas then.
rm-launch rewrites 0x4000 13200

printf 'KTAP version 1\n1..26\n'
until_true "the machine has cgroup version 2 alone" only_version_2
until_true "containerd serves" ctr version
ctr -n k8s.io images import /images/pod.tar >/var/log/images.log 2>&1
until_true "the control plane is ready" get /readyz
start_plugin
start_kubelet
until_true "the node is ready" node_is_ready
until_true "and offers two slots of the profile" node_offers 2
pod one 0x5000
until_true "a pod that the scheduler placed works, and has the memory of its profile only" works one
until_true "it is Running" phase one Running
until_true "its group has the profile's memory" limit one gmem.limit 67108864
until_true "its group has the profile's time slice" limit one compute.timeslice 1000
until_true "its group is bound to its cgroup" bound one
until_true "its group is charged" charged one
until_true "TPCs are reserved for it by the profile's quota" reserves one
pod two 0x6000
until_true "another pod has the second slot" works two
until_true "the GPU runs its launches on no TPC of the first" yields 0x6000 one
until_true "and those of the first on none of its own" yields 0x5000 two
pod three 0x7000
until_true "a third pod is pending for want of a slot" waits_for_a_slot three
remove one
until_true "it runs when another has gone" works three
until_true "the group is in place of the other's" eval '[ -z "$(group_of one)" ] && limit three gmem.limit 67108864'
until_true "its launches run on no TPC of the second" yields 0x7000 two
until_true "which keeps off its TPCs, too" yields 0x6000 three
kill -9 $plugin
wait $plugin
kill $kubelet
wait $kubelet
until_true "without plugin and kubelet the groups stay" limit two gmem.limit 67108864
remove two
start_plugin
start_kubelet
until_true "a pod that was deleted meanwhile has no group" eval '[ -z "$(group_of two)" ] && charged three'
pod four 0x5000
until_true "and its slot is another's" works_again four 0x5000
until_true "whose launches run on no TPC of the third" yields 0x5000 three
remove three four
until_true "nothing is left of groups and records" none_left
until_true "the GPUs are healthy" eval '! grep -q unhealthy /var/log/plugin.log'
kill $kubelet $plugin
wait $kubelet $plugin
kill $containerd
wait $containerd
for shim in $(pidof containerd-shim-runc-v2); do kill $shim; done
sleep 1
