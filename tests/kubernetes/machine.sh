#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine's node: pods of a kubelet without a control plane, on the patched driver, the
# software GPU and cgroup version 2 alone. The device plugin is the only one that writes limits.
# Prints KTAP.
export PATH=/bin HOME=/root
GCT=/sys/kernel/debug/gctgroup
RECORDS=/run/gctgroup-kubernetes
WAIT=200

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
	cat /var/log/pods/default_$1-node1_*/main/0.log | cut -d' ' -f4-
}

says() {
	is "$(log_of "$1")" "$2"
}

group_of() {
	ls $GCT | grep "^k8s_default_$1-node1_main_"
}

limit() {
	is "$(cat "$GCT/$(group_of "$1")/0/$2")" "$3"
}

# pod NAME PROGRAM: a pod that asks for the profile. It asks for memory, and then for more than it
# has. Then it launches grids of that program without end: two clients would share the time slice.
pod() {
	cat >/etc/manifests/$1.yaml <<-POD
		apiVersion: v1
		kind: Pod
		metadata: {name: $1, namespace: default}
		spec:
		  hostNetwork: true
		  restartPolicy: Never
		  terminationGracePeriodSeconds: 0
		  containers:
		  - name: main
		    image: localhost/pod:1
		    imagePullPolicy: Never
		    command:
		    - busybox
		    - sh
		    - -c
		    - >-
		      rm-pod 16 64 >/out & until busybox grep -q refused /out; do sleep 1; done;
		      busybox cat /out; exec rm-launch /launched $2 13200
		    resources: {limits: {gctgroup.dev/quota: 1}}
	POD
}

# A pod's program works, and has the memory of its profile only.
works() {
	says "$1" "10 pieces of work done
time slice 1000 us
16 MiB granted
64 MiB refused"
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
	kubelet --config /etc/kubelet.yaml --docker=tcp://127.0.0.1:2375 --container-runtime=remote \
		--container-runtime-endpoint=unix:///run/containerd/containerd.sock \
		--hostname-override=node1 --node-ip=10.99.0.1 >>/var/log/kubelet.log 2>&1 &
	kubelet=$!
}

mount --make-rshared /
mkdir -p /var/log /var/lib/kubelet /var/lib/containerd /etc/manifests /run/containerd /run/docker/v1.24
: >/etc/resolv.conf
echo '127.0.0.1 localhost' >/etc/hosts
ip link set lo up
ip addr add 10.99.0.1/32 dev lo
ip route add default dev lo
# As in cluster.sh: the kubelet looks for docker.
echo '{"DockerRootDir": "/nowhere"}' >/run/docker/v1.24/info
httpd -p 127.0.0.1:2375 -h /run/docker
containerd >/var/log/containerd.log 2>&1 &
containerd=$!

# The driver knows the TPCs of a GPU that a client has opened once, and enforces quotas then.
rm-launch rewrites 0x4000 13200

printf 'KTAP version 1\n1..19\n'
until_true "the machine has cgroup version 2 alone" only_version_2
until_true "containerd serves" ctr version
ctr -n k8s.io images import /images/pod.tar >/var/log/images.log 2>&1
start_plugin
start_kubelet
until_true "the kubelet knows the plugin" grep -q 'quota: registered' /var/log/plugin.log
pod one 0x5000
until_true "a pod's program works, and has the memory of its profile only" works one
until_true "its group has the profile's memory" limit one gmem.limit 67108864
until_true "its group has the profile's time slice" limit one compute.timeslice 1000
until_true "its group is bound to its cgroup" bound one
until_true "its group is charged" charged one
until_true "TPCs are reserved for it by the profile's quota" reserves one
pod two 0x6000
until_true "another pod has the second slot" works two
until_true "the GPU runs its launches on no TPC of the first" yields 0x6000 one
until_true "and those of the first on none of its own" yields 0x5000 two
kill -9 $plugin
wait $plugin
kill $kubelet
wait $kubelet
until_true "without plugin and kubelet the groups stay" limit two gmem.limit 67108864
rm /etc/manifests/one.yaml
start_plugin
start_kubelet
until_true "a pod that was removed meanwhile has no group" eval '[ -z "$(group_of one)" ] && charged two'
pod three 0x7000
until_true "and its slot is another's" works three
until_true "whose launches run on no TPC of the second" yields 0x7000 two
until_true "which keeps off its TPCs, too" yields 0x6000 three
rm /etc/manifests/*.yaml
until_true "nothing is left of groups and records" none_left
until_true "the GPUs are healthy" eval '! grep -q unhealthy /var/log/plugin.log'
kill $kubelet $plugin
wait $kubelet $plugin
kill $containerd
wait $containerd
for shim in $(pidof containerd-shim-runc-v2); do kill $shim; done
sleep 1
