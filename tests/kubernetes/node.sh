#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: node.sh CGROUP v1|v2 PODS
#
# Runs in the namespaces that ci/test-kubernetes.sh makes: starts a cluster of one node and a gctd
# without a GPU, and tries pods that ask for a profile. So many PODS come and go in the end.
# Prints a line for each test.
set -u
CGROUP=$1 VERSION=$2 PODS=$3
export PATH=/gct/bin:/gct/programs:/usr/sbin:/usr/bin KUBECONFIG=/run/kubeconfig HOME=/root
START=$SECONDS
# Most seconds until something happens that takes a few.
WAIT=60
. /gct/tests/cluster.sh
. /gct/tests/guide.sh

ok() {
	printf 'ok %s (after %d s)\n' "$1" $((SECONDS - START))
}

# until_true DESCRIPTION command...: a test that passes as soon as the command succeeds. What
# follows builds on it, so a failure ends the script.
until_true() {
	local limit=$((SECONDS + WAIT)) what=$1
	shift
	while ! "$@" >/tmp/last 2>&1; do
		if [ $SECONDS -ge $limit ]; then
			printf 'FAILED %s (after %d s)\n' "$what" $((SECONDS - START))
			cat /tmp/last
			kubectl get pods -o wide
			kubectl get events --sort-by=.lastTimestamp | tail -n 5
			gctctl --user ls
			exit
		fi
		sleep 0.2
	done
	ok "$what"
}

is() {
	[ "$1" = "$2" ] || { echo "is $1, not $2"; return 1; }
}

allocatable() {
	is "$(kubectl get node node1 -o "jsonpath={.status.allocatable.gctgroup\.dev/$1}")" "$2"
}

capacity() {
	is "$(kubectl get node node1 -o "jsonpath={.status.capacity.gctgroup\.dev/$1}")" "$2"
}

# manifest NAME LABELS COMMAND COUNT PROFILE: prints a pod.
manifest() {
	cat <<-POD
		---
		apiVersion: v1
		kind: Pod
		metadata: {name: $1, labels: {$2}}
		spec:
		  restartPolicy: Never
		  dnsPolicy: Default
		  terminationGracePeriodSeconds: 0
		  containers:
		  - name: main
		    image: localhost/busybox:1
		    imagePullPolicy: Never
		    command: [$3]
		    env: [{name: LD_PRELOAD, value: /usr/lib/own.so}]
		    resources: {limits: {gctgroup.dev/$5: $4}}
	POD
}

# pod NAME [COUNT [PROFILE]]: a pod that takes 512 MiB and asks for another 600.
pod() {
	manifest "$1" "" 'tenant, "512", "600"' "${2:-1}" "${3:-small}" | kubectl create -f - >/dev/null
}

# annotated NAME LIMIT COMMAND: a pod whose annotations ask for a GPU.
annotated() {
	kubectl create -f - >/dev/null <<-POD
		apiVersion: v1
		kind: Pod
		metadata:
		  name: $1
		  annotations:
		    nvidia.com/container.main.gpu-memory.request: 256Mi
		    nvidia.com/container.main.gpu-memory.limit: $2
		    nvidia.com/container.main.gpu-compute.portion: "0.5"
		    nvidia.com/container.main.gpus.devices: GPU-00112233-4455-6677-8899-aabbccddeef4
		spec:
		  restartPolicy: Never
		  terminationGracePeriodSeconds: 0
		  containers:
		  - {name: main, image: localhost/busybox:1, imagePullPolicy: Never, command: [$3]}
	POD
}

# The limits of a pod on the GPU of annotations.
annotated_limits() {
	local gpu
	gpu=$(group_of "$1")/4
	is "$(gctctl --user get "$gpu" gmem.limit) $(gctctl --user get "$gpu" gmem.low) $(gctctl --user get "$gpu" compute.max)" \
		"1073741824 0 10000 20000"
}

# How often a plugin has registered at the runtime.
nri_registrations() {
	grep -c 'nri: registered' /gct/logs/plugin.log
}

delete() {
	kubectl delete pod "$1" --wait=true >/dev/null
}

# The names of the pods in a phase.
in_phase() {
	kubectl get pods -o jsonpath="{.items[?(@.status.phase==\"$1\")].metadata.name}"
}

running() {
	is "$(in_phase Running)" "$*"
}

# The pods that have a group: their names begin with k8s_default_POD_main_.
groups() {
	local name names=
	for name in $(gctctl --user ls --json | grep -o '"k8s_[^"]*"' | sort -u); do
		name=${name#\"k8s_default_}
		names+=" ${name%%_*}"
	done
	is "${names# }" "$*"
}

group_of() {
	gctctl --user ls --json | grep -o "\"k8s_default_$1_main_[^\"]*\"" | head -n 1 | tr -d '"'
}

# limit POD FILE VALUE
limit() {
	is "$(gctctl --user get "$(group_of "$1")/0" "$2")" "$3"
}

# The only member of its group that uses the GPU is the pod's process.
member() {
	local pid
	pid=$(gctctl --user get "$(group_of "$1")" group.procs)
	grep -q "$(group_of "$1" | grep -o '[^_]*$')" "/proc/$pid/cgroup" && is "$(cat "/proc/$pid/comm")" tenant
}

process_of() {
	gctctl --user get "$(group_of "$1")" group.procs
}

# loads POD LIBRARY: the pod's process has a library.
loads() {
	grep -q " $2$" "/proc/$(gctctl --user get "$(group_of "$1")" group.procs)/maps"
}

# Without version 2 a group cannot be bound to a cgroup, and the pod's first process is its member.
bound() {
	local path
	path=$(gctctl --user get "$(group_of "$1")" group.cgroup)
	case $VERSION in
	v1) is "$path" none ;;
	v2) [ -d "/sys/fs/cgroup/$path" ] || [ -d "/sys/fs/cgroup/unified/$path" ] ;;
	esac
}

# What a tenant says at its start. Its mask changes with its neighbours.
says() {
	is "$(kubectl logs "$1" | grep -v '^may use ')" "${*:2}"
}

# Registrations of the plugin since it started.
registrations() {
	is "$(grep -c 'gctgroup.dev/small: registered' /gct/logs/plugin.log)" "$1"
}

waits_for_a_slot() {
	is "$(in_phase Pending)" "$1" && kubectl get events | grep -q 'Insufficient gctgroup.dev/small'
}

in_pod() {
	kubectl exec "$1" -- "${@:2}"
}

# It has another problem to tell, too: no driver is loaded.
doctor_says() {
	in_pod "$1" gctctl --user doctor | grep -F "$2"
}

# The GPUs whose nodes a pod has.
gpus_of() {
	in_pod "$1" sh -c 'cd /dev; echo nvidia[0-9]'
}

# The pod's MPS daemon answers, and they have one /dev/shm.
has_mps() {
	is "$(in_pod "$1" sh -c 'echo get_default_active_thread_percentage | nvidia-cuda-mps-control')" 100.0 &&
		in_pod "$1" sh -c '[ -e /dev/shm/cuda.shm.stand-in ] && grep -q "^gct-mps /dev/shm tmpfs" /proc/mounts'
}

# make_many NUMBER...: pods that see their limits, take memory and end. Exit code 0 says that they
# were under their limits. All are made at once, so most are pending.
make_many() {
	local n command
	command='[ "$(tenant --exit 512 600)" = "$(printf "can count on 8 TPCs\n512 MiB granted\n600 MiB refused")" ]'
	for n; do
		manifest "many$n" 'many: "yes"' "sh, -c, '$command'" 1 small
	done | kubectl create -f - >/dev/null
}

# ended COUNT: deletes those that have ended, until their programs were so many. The kubelet turns
# some pods away while the plugin is, and a kubelet that stops may cut a start short. The programs
# of those did not run, and they are made again.
limited=0 unlimited=0
ended() {
	local name phase code ended=() again=()
	while read -r name phase code; do
		case $phase:$code in
		Succeeded:*) limited=$((limited + 1)) ;;
		Failed:1) unlimited=$((unlimited + 1)) ;;
		Failed:*) again+=("${name#many}") ;;
		esac
		ended+=("$name")
	done < <(kubectl get pods -l many=yes --field-selector status.phase!=Pending,status.phase!=Running -o \
		jsonpath='{range .items[*]}{.metadata.name} {.status.phase} {.status.containerStatuses[*].state.terminated.exitCode}{"\n"}{end}')
	[ ${#ended[@]} -eq 0 ] || kubectl delete pod --wait=true "${ended[@]}"
	[ ${#again[@]} -eq 0 ] || make_many "${again[@]}"
	[ $((limited + unlimited)) -ge "$1" ]
}

start_cluster
start_gctd
start_plugin
start_kubelet
until_true "the node offers four slots of its profile" allocatable small 4

for n in 1 2 3 4; do pod tenant$n; done
until_true "four pods run" running tenant1 tenant2 tenant3 tenant4
pod tenant5
until_true "a fifth pod waits for a slot" waits_for_a_slot tenant5
until_true "each pod has a group" groups tenant1 tenant2 tenant3 tenant4
until_true "a group has the memory limit of its profile" limit tenant1 gmem.limit 1073741824
until_true "a group has the quota of its profile" limit tenant4 tpc.quota 8
until_true "the group is bound to its pod's cgroup, where there is version 2" bound tenant2
until_true "the pod's process is the group's member" member tenant2
until_true "the pod has the TPCs of its quota, and no more memory than its limit" \
	says tenant3 $'can count on 8 TPCs\n512 MiB granted\n600 MiB refused'
until_true "the group is charged for the pod's memory" limit tenant3 gmem.current 536870912
until_true "a pod has the tenants' socket" in_pod tenant1 sh -c '[ -S "$GCTGROUP_SOCKET" ]'
until_true "its program has the preload library" loads tenant1 /usr/lib/gctgroup/libgct_preload.so
until_true "and the one that the pod preloads itself" loads tenant1 /usr/lib/own.so
until_true "a pod has its GPU's node and not another's" in_pod tenant1 \
	sh -c '[ -c /dev/nvidia0 ] && [ -c /dev/nvidiactl ] && [ ! -e /dev/nvidia1 ]'
until_true "and the driver's library" in_pod tenant1 sh -c '[ -s /usr/lib/x86_64-linux-gnu/libcuda.so.1 ]'
until_true "doctor finds in a pod what it needs" doctor_says tenant1 "Programs have /usr/lib/gctgroup/libgct_preload.so"
until_true "a pod has no socket of administrators" in_pod tenant1 sh -c '[ ! -e /run/gctgroup/admin.sock ]'

delete tenant1
until_true "the fifth pod runs when another has gone" running tenant2 tenant3 tenant4 tenant5
until_true "its group is in place of the other's" groups tenant2 tenant3 tenant4 tenant5

stop kubelet
until_true "without a kubelet the groups stay" groups tenant2 tenant3 tenant4 tenant5
start_kubelet
delete tenant2
until_true "a kubelet that restarted knows the plugin again" registrations 2
pod tenant6
until_true "and its pods run" running tenant3 tenant4 tenant5 tenant6
until_true "the groups are those of the pods" groups tenant3 tenant4 tenant5 tenant6

crash plugin
until_true "without the plugin no slot is offered" allocatable small 0
delete tenant3
until_true "without the plugin a pod's group goes with it" groups tenant4 tenant5 tenant6
start_plugin
until_true "a plugin that crashed offers its slots again" allocatable small 4
pod tenant7
until_true "and its pods run" running tenant4 tenant5 tenant6 tenant7

stop gctd
until_true "without gctd no slot is offered" allocatable small 0
until_true "and the node shows that four are unhealthy" capacity small 4
start_gctd
until_true "with a new gctd the slots are offered again" allocatable small 4
until_true "and the groups are back" groups tenant4 tenant5 tenant6 tenant7
until_true "with their limits" limit tenant4 tpc.quota 8
until_true "and their members" member tenant4
until_true "and what those hold is charged again" limit tenant4 gmem.current 536870912

for n in 4 5 6 7; do delete tenant$n; done
until_true "the guide's command starts a container of podman" block Podman 2
container=$(tail -n 1 /gct/logs/guide-Podman2.log)
until_true "a container of podman has a group with the profile's limits" \
	eval 'is "$(gctctl --user get "ctr_${container:0:12}/0" tpc.quota)" 8'
until_true "and is its member" eval 'is "$(gctctl --user get "ctr_${container:0:12}/0" gmem.current)" 536870912'
in_podman rm -f -t 0 "$container" >>/gct/logs/podman.log 2>&1
until_true "its group goes with it" eval '! gctctl --user get "ctr_${container:0:12}" group.cgroup'
pod greedy 2
until_true "a pod cannot have two slots of a GPU" eval 'is "$(in_phase Failed)" greedy'
delete greedy

# Annotations, by the runtime's NRI.
annotated asks 1Gi 'tenant, "512", "600"'
until_true "a pod whose annotations ask for a GPU runs" running asks
until_true "it has the limits that they say, and nothing is guaranteed" annotated_limits asks
until_true "its program has the preload library" loads asks /usr/lib/gctgroup/libgct_preload.so
until_true "and no more memory than its limit" eval 'kubectl logs asks | grep "600 MiB refused"'
until_true "it has its GPU's node and not another's" in_pod asks \
	sh -c '[ -c /dev/nvidia4 ] && [ -c /dev/nvidiactl ] && [ ! -e /dev/nvidia0 ]'
annotated greedy 2Gi 'sleep, "1000"'
until_true "one that asks for more than it may have does not start, and its event says why" eval \
	'kubectl get events | grep "gctgroup: GPU 4: 2147483648 bytes are asked for, and a container may have 1073741824"'
delete greedy
crash plugin
annotated early 1Gi 'sleep, "1000"'
until_true "without the plugin its annotations give a pod nothing" in_pod early \
	sh -c '[ ! -e /dev/nvidia4 ] && [ ! -e /dev/nvidiactl ]'
until_true "and it has no group" groups asks
start_plugin
until_true "a plugin that starts adopts it, and what has a group keeps it" groups asks early
until_true "with its limits" annotated_limits early
until_true "bound to its cgroup" bound early
registrations=$(nri_registrations)
stop containerd
start containerd containerd
until_true "a containerd that starts anew has the plugin again" eval '[ "$(nri_registrations)" -gt $registrations ]'
annotated again 1Gi 'sleep, "1000"'
until_true "and a pod has its group" groups again asks early
delete asks
delete early
delete again
until_true "their groups go with them" groups

# The spread ones first: beside packed ones, one GPU may have the fewest tenants for all of them.
for n in 1 2 3; do pod spread$n 1 spread; done
until_true "pods of two GPUs run" running spread1 spread2 spread3
until_true "pods that are spread are on both" eval \
	'is "$(for n in 1 2 3; do gpus_of spread$n; done | sort -u | wc -l)" 2'
for n in 1 2 3; do pod packed$n 1 packed; done
until_true "more pods run on them" running packed1 packed2 packed3 spread1 spread2 spread3
until_true "pods that are packed are on one GPU" eval \
	'is "$(for n in 1 2 3; do gpus_of packed$n; done | sort -u | wc -l)" 1'
for n in 1 2; do pod side$n 1 side; done
until_true "pods run side by side" running packed1 packed2 packed3 side1 side2 spread1 spread2 spread3
until_true "they have their GPU's MPS daemon (a stand-in)" has_mps side1
until_true "both" has_mps side2
until_true "others have none" in_pod spread1 sh -c '[ ! -e /run/gctgroup/mps ]'
pipe=/run/gctgroup-mps/gpu3/pipe
daemon=$(cat $pipe/nvidia-cuda-mps-control.pid)
in_pod side1 sh -c 'ln -sf /run/of-the-host /run/gctgroup/mps/link'
until_true "on the host no link of theirs is followed" eval \
	'[ -L $pipe/link ] && ! { : >$pipe/link; } 2>/dev/null && [ ! -e /run/of-the-host ]'
in_pod side1 sh -c 'for n in $(seq 5000); do : >/run/gctgroup/mps/$n || break; done' >/dev/null 2>&1
until_true "they can fill their pipe alone" eval '[ ! -e $pipe/5000 ] && : >/run/room && rm /run/room'
kill -KILL "$daemon"
until_true "a daemon that died is replaced" has_mps side1
# Neither of them ends at SIGTERM: their first process does not handle it. A pod whose deletion is
# forced is killed by the kubelet itself, and not by its runtime.
logs=/run/gctgroup-mps/gpu3/log
taken=$(process_of side1) stays=$(process_of side2)
printf '%s\n' "$taken" "$stays" >$logs/clients
kubectl delete pod side1 --grace-period=1 --wait=true >/dev/null
until_true "a pod that containerd kills was taken from its MPS server before" eval \
	'is "$(cat $logs/terminated)" "$taken lives"'
until_true "its neighbour was not" eval 'in_phase Running | grep -qw side2 && is "$(process_of side2)" "$stays"'
kubectl delete pod --all --wait=true >/dev/null

# Kubelet and plugin restart while pods come and go, at least once each.
make_many $(seq "$PODS")
WAIT=$((60 + PODS))
for ((stage = 1; stage <= 1 + PODS / 100; stage++)); do
	crash plugin
	start_plugin
	until_true "pods come and go while the plugin crashes" ended $((stage * PODS / (2 + PODS / 100)))
	stop kubelet
	start_kubelet
done
until_true "all $PODS have, while the kubelet restarted, too" ended "$PODS"
until_true "each under its limits" is $unlimited 0
WAIT=60
until_true "nothing is left of the groups" groups
until_true "nothing is left of the records" eval 'is "$(ls /run/gctgroup-kubernetes)" lock'

# The chart, by the guide's commands, in place of the plugin that was started by hand.
# exporter FIELD: prints a field of the exporter's pod.
exporter() {
	kubectl -n kube-system get pod -l app.kubernetes.io/component=exporter -o "jsonpath={.items[0].$1}"
}
exports() {
	busybox wget -qO- "http://$(exporter status.podIP):9910/metrics" | grep 'gctgroup_.*k8s_default_web_server'
}
names_its_pod() {
	exports | grep '^gctgroup_group_info.*namespace="default",pod="web",container="server"'
}
only_reads() {
	kubectl -n kube-system exec "$(exporter metadata.name)" -- sh -c \
		'busybox grep -q "^CapEff:.0*$" /proc/self/status && [ -S /run/gctgroup/tenants/gctd.sock ] &&
			[ ! -e /run/gctgroup/admin.sock ]'
}

stop plugin
until_true "no plugin offers the profile" allocatable small 0
WAIT=120
until_true "the guide's commands install the chart" block Kubernetes 1
until_true "the chart's plugin offers its profile" allocatable small 2
until_true "the guide's pod runs" block Kubernetes 2
until_true "it has the limits of its profile" says web $'can count on 8 TPCs\n512 MiB granted\n600 MiB refused'
until_true "the guide's commands show its group" block Kubernetes 3
until_true "which is the pod's" grep k8s_default_web_server /gct/logs/guide-Kubernetes3.log
until_true "the chart's exporter shows its group" exports
until_true "and names its pod, as the kubelet says" names_its_pod
until_true "the exporter has no capability and no socket of administrators" only_reads
until_true "the guide's commands remove pod and chart" block Kubernetes 4
until_true "without the chart its profile is not offered" allocatable small 0
until_true "and nothing is left" groups
until_true "the guide has no other commands for podman" no_other_block Podman 2
until_true "and none for Kubernetes" no_other_block Kubernetes 4
