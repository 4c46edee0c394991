# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What the device plugin's hooks do in the kernel mode, called as a runtime calls them. A container
# is a process in a cgroup of its own, whose program is tests/rm-client's rm-pod. Nobody else writes
# its limits. Sourced by gctctl's vm.sh, which has `expect`.

# container NAME: a process in a cgroup of its own, which waits before it becomes the program.
# Leaves its pid in the variable container.
container() {
	mkdir -p /sys/fs/cgroup/pods/$1
	mkfifo /tmp/$1.go
	sh -c "echo 0 >/sys/fs/cgroup/pods/$1/cgroup.procs; : >/tmp/$1.in; read go </tmp/$1.go; exec rm-pod 16 64" \
		>/tmp/$1.log 2>&1 &
	container=$!
	waits_for 'its cgroup' [ -e /tmp/$1.in ]
}

# waits_for WHAT COMMAND...: waits until the command succeeds, for minutes on a slow machine.
waits_for() {
	what=$1 left=1200
	shift
	until "$@" 2>/dev/null; do
		left=$((left - 1))
		[ $left -gt 0 ] || { echo "# $what did not come"; return 1; }
		sleep 0.2
	done
}

# hook HOOK NAME PID [OPTION...]: a hook with the state that containerd gives it.
hook() {
	hook=$1 name=$2 pid=$3
	shift 3
	printf '{"ociVersion": "1.0.2", "id": "%s0123456789abcdef", "status": "created", "pid": %d, "annotations": {
		"io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.sandbox-name": "%s",
		"io.kubernetes.cri.container-name": "main"}}' $name $pid $name | gct-device-plugin $hook "$@"
	ended=$?
	echo "$hook ended with $ended"
	return $ended
}

binds() {
	hook bind "$@" --profile small --gpu 0 --limit gmem.limit=64M --limit compute.timeslice=1000
}

group_of() {
	echo k8s_default_$1_main_$(printf '%s0123456789abcdef' $1 | cut -c1-12)
}

# starts NAME: lets the container's program run, and waits until it has asked for all memory.
starts() {
	echo >/tmp/$1.go
	waits_for 'the last answer' grep -q '^64 MiB' /tmp/$1.log
	cat /tmp/$1.log
}

# ends NAME PID: ends the container, and removes its cgroup, as a runtime does.
ends() {
	kill $2
	wait $2 2>/dev/null
	rmdir /sys/fs/cgroup/pods/$1
}

# A program in no group has what it asks for.
container alone
expect 0 '64 MiB granted' starts alone
ends alone $container

tenant() {
	container $1
	expect 0 'bind ended with 0' binds $1 $container
	expect 0 "/pods/$1" gctctl get $(group_of $1) group.cgroup
	expect 0 '67108864' gctctl get $(group_of $1)/0 gmem.limit
	expect 0 'default' gctctl get $(group_of $1)/1 compute.timeslice
	expect 0 '64 MiB refused' starts $1
	expect 0 '16 MiB granted' cat /tmp/$1.log
	expect 0 'time slice 1000 us' cat /tmp/$1.log
	# A runtime that calls again changes nothing.
	expect 0 'bind ended with 0' binds $1 $container
	ends $1 $container
	expect 0 'release ended with 0' hook release $1 0
	expect 4 'There is no' gctctl get $(group_of $1) group.cgroup
}

tenant pod1
container pod2
expect 1 'slip.power' hook bind pod2 $container --profile odd --gpu 0 --limit slip.power=5
expect 4 'There is no' gctctl get $(group_of pod2) group.cgroup
ends pod2 $container
# As under Secure Boot: the hooks use /dev/gctgroup.
umount /sys/kernel/debug
tenant pod3
mount -t debugfs debugfs /sys/kernel/debug
