#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-kubernetes.sh [charts|images|v2|v1|machine]
#
# Runs gct-device-plugin beside a real kubelet, control plane, containerd and runc, in
# namespaces of its own, on a gctd without a GPU, and checks the chart. With "machine", plugin,
# kubelet, containerd and runc are in a virtual machine, on the patched driver and the software
# GPU, and the control plane beside it. With "images", podman runs images of several kinds, without
# a kubelet. Without an argument what gates: charts, images, and version 2 of cgroups; for
# `make test-long` all. Needs root.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/versions.sh"
. "$(dirname "$0")/machine.sh"
. "$(dirname "$0")/chroot.sh"

JOB=kubernetes

rm -f "$RESULTS/$JOB"
[ "$(id -u)" -eq 0 ] || die "the job $JOB makes namespaces, mounts and cgroups: run it as root"
"$ROOT/ci/setup-kubernetes.sh"
node=$BUILD/kubernetes

# The kubelet's cgroups lie below one of this job, in each hierarchy, so that two clones do not meet
# and nothing is left.
cgroup=gct-kubernetes-$$
hierarchies() {
	findmnt -rn -t cgroup,cgroup2 -o TARGET
}
make_cgroups() {
	local at file
	for at in $(hierarchies); do
		mkdir "$at/$cgroup"
		[ ! -e "$at/cpuset.cpus" ] || for file in cpuset.cpus cpuset.mems; do
			cat "$at/$file" >"$at/$cgroup/$file"
		done
	done
}
remove_cgroups() {
	local at
	for at in $(hierarchies); do
		[ ! -d "$at/$cgroup" ] || find "$at/$cgroup" -depth -type d -exec rmdir {} + || true
	done
}
trap remove_cgroups EXIT
make_cgroups

# root_script LOGS: prints a script that mounts the root file system of a node or a control plane,
# the store's below a tmpfs, and is in it then. Its programs write to the folder LOGS.
root_script() {
	cat <<-ROOT
		set -eu
		mount -t tmpfs tmpfs "$node/mount"
		cd "$node/mount"
		mkdir upper work root
		mount -t overlay -o "lowerdir=$(readlink -f "$node/root"),upperdir=upper,workdir=work" overlay root
		for type in proc:proc tmpfs:run tmpfs:tmp tmpfs:var/lib tmpfs:var/log; do
			mount -t "\${type%:*}" "\${type%:*}" "root/\${type#*:}"
		done
		mount --rbind /sys root/sys
		mount --rbind /dev root/dev
		mkdir root/gct/{programs,bin,tests,logs,deploy,chroot}
		touch root/gct/guide.md
		mount --bind "$(readlink -f "$node/bin")" root/gct/bin
		mount --bind "$node/programs" root/gct/programs
		mount --bind "$ROOT/tests/kubernetes" root/gct/tests
		mount --bind "$ROOT/deploy" root/gct/deploy
		mount --bind "$ROOT/gctgroup-docs/guide.md" root/gct/guide.md
		mount --bind "$1" root/gct/logs
		for image in older clean ${GUIDE_RELEASES[*]/#/guide-}; do
			[ -e "$BUILD/chroot/\$image" ] || continue
			mkdir "root/gct/chroot/\$image"
			mount --bind "$BUILD/chroot/\$image/" "root/gct/chroot/\$image"
		done
		cd root
	ROOT
}

# Prints the rest of a script that enters the node with cgroups version 2, or without, and executes
# a script there.
enter_node() {
	cat <<-ENTER
		pivot_root . .old
		umount -l /.old
		[ $1 = v2 ] || umount /sys/fs/cgroup/unified
		ip link set lo up
		exec /bin/bash /gct/tests/${*:2}
	ENTER
}

# Prints the rest of a script that starts the control plane of a machine, and executes a command
# beside it. The command sees this machine's files, and the control plane by its network.
execute_beside_control() {
	cat <<-ENTER
		chroot . /bin/bash /gct/tests/machine-control.sh </dev/null >"$1/control.log" 2>&1 &
		cd "$ROOT"
		exec "\$@"
	ENTER
}

# All processes of a command that this precedes end with their pid namespace.
namespaces=(unshare -m -p -n -u -i -f --kill-child --propagation private)

# run_node v2|v1: runs tests/kubernetes/node.sh and counts its lines.
run_node() {
	local version=$1 logs
	# The pods that come and go in the end.
	pods=12 SECONDS_MAX=300
	! long || [ "$version" = v1 ] || pods=1000 SECONDS_MAX=2400
	logs=$BUILD/log/$JOB-$version
	rm -rf "$logs"
	mkdir -p "$logs" "$node/mount"
	{ root_script "$logs"; enter_node "$version" node.sh $cgroup "$version" $pods; } >"$node/enter.sh"
	printf '==> Kubernetes, cgroup %s, for at most %d s\n' "$version" $SECONDS_MAX
	# The logs of the cluster's programs are in $logs.
	check_script $JOB "$logs.log" timeout -s KILL $SECONDS_MAX \
		"${namespaces[@]}" bash "$node/enter.sh" </dev/null
}

# run_images: runs tests/kubernetes/images.sh and counts its lines.
run_images() {
	local logs=$BUILD/log/$JOB-images
	rm -rf "$logs"
	mkdir -p "$logs" "$node/mount"
	cc -nostdlib -pie -fPIE -Wl,-dynamic-linker,/lib/ld-musl-x86_64.so.1 \
		-o "$node/programs/musl-program" "$ROOT/tests/kubernetes/musl-program.c"
	{ root_script "$logs"; enter_node v2 images.sh $cgroup; } >"$node/enter.sh"
	printf '==> Images of containers\n'
	check_script $JOB "$logs.log" timeout -s KILL 300 \
		"${namespaces[@]}" bash "$node/enter.sh" </dev/null
}

# Prints the libraries of programs of the node's root file system.
libraries() {
	local program
	for program; do
		chroot "$node/root/" /lib64/ld-linux-x86-64.so.2 --list "$program"
	done | grep -o '/[^ ]*\.so[^ ]*' | sort -u
}

# Makes the root file system of the machine's node, with the image of its pods.
make_machine_root() {
	local root=$1 file folder
	local programs=(/usr/bin/{containerd,containerd-shim-runc-v2,ctr,kubectl} /usr/sbin/runc)
	. "$ROOT/tests/kubernetes/image.sh"
	. "$ROOT/tests/kubernetes/control-plane.sh"
	rm -rf "$root"
	mkdir -p "$root"/{bin,root,tmp,images,etc/containerd,etc/gctgroup,var/lib}
	for file in $(libraries "${programs[@]}"); do
		install -D "$node/root/$file" "$root/$file"
	done
	for file in "${programs[@]}"; do
		install "$node/root$file" "$root/bin"
	done
	install "$node/bin/kubelet" "$node/root/usr/bin/busybox" "$root/bin"
	install --strip "$GUEST_BIN"/{gct-device-plugin,fakegpu-record,rm-launch} "$root/bin"
	for file in $("$root/bin/busybox" --list); do
		[ -e "$root/bin/$file" ] || ln -s busybox "$root/bin/$file"
	done
	install -m 755 -T "$ROOT/tests/kubernetes/machine.sh" "$root/test.sh"
	install -m 644 -T "$ROOT/tests/kubernetes/machine-kubelet.yaml" "$root/etc/kubelet.yaml"
	kubeconfig https://10.0.2.2:6443 >"$root/etc/kubeconfig"
	install -m 644 -T "$ROOT/tests/kubernetes/machine-profiles.toml" "$root/etc/gctgroup/profiles.toml"
	install -m 644 -T "$ROOT/tests/kubernetes/machine-containerd.toml" "$root/etc/containerd/config.toml"
	folder=$(mktemp -d)
	mkdir "$folder/bin"
	cp "$root/bin/busybox" "$folder/bin"
	install --strip "$GUEST_BIN"/rm-{pod,launch} "$folder/bin"
	ln -s busybox "$folder/bin/sleep"
	pack_image "$folder" registry.k8s.io/pause:3.8 localhost/pod:1 >"$root/images/pod.tar"
	rm -r "$folder"
}

run_kernel_mode() {
	local logs=$BUILD/log/$JOB-control
	need_machine gct-device-plugin fakegpu-record
	step "programs of the machine's node" make_machine_root "$node/machine"
	rm -rf "$logs"
	# The programs of the node of namespaces are no part of this one.
	mkdir -p "$logs" "$node"/{mount,programs}
	{ root_script "$logs"; execute_beside_control "$logs"; } >"$node/enter.sh"
	run_machine $JOB machine "$node/machine" "${namespaces[@]}" bash "$node/enter.sh"
}

# render VALUE...: prints the chart's manifests with these values.
render() {
	"$BUILD/charts/helm" template gctgroup "$ROOT/deploy/helm/gctgroup" --namespace kube-system "$@"
}

# is_valid FILE...: compares manifests with the published schemas, strictly.
is_valid() {
	PYTHONPATH=$BUILD/charts/python python3 -m kubernetes_validate -k "${KUBERNETES_SCHEMAS%.*}" --strict "$@"
}

kustomize_is_the_chart() {
	diff <(render) "$ROOT/deploy/kustomize/gctgroup.yaml"
}

# exporter_sees FOLDER...: the rendered exporter mounts these folders of the node alone, to be read.
exporter_sees() {
	local folder
	for folder; do
		grep -qF "hostPath: {path: $folder}" "$node/charts/exporter.yaml" || return
		grep -qF "mountPath: $folder, readOnly: true}" "$node/charts/exporter.yaml" || return
	done
	[ "$(grep -c hostPath "$node/charts/exporter.yaml")" -eq $# ]
}

# In the user-space mode the exporter is no administrator of gctd: root on its socket, admin.sock.
exporter_only_reads() {
	local tree=/run/gctgroup/tenants pods=/var/lib/kubelet/pod-resources
	render --set exporter.podLabels=false --show-only templates/exporter.yaml >"$node/charts/exporter.yaml"
	exporter_sees $tree && grep -qF 'runAsNonRoot: true' "$node/charts/exporter.yaml" || return
	render --show-only templates/exporter.yaml >"$node/charts/exporter.yaml"
	exporter_sees $tree $pods && grep -qF 'capabilities: {drop: [ALL]}' "$node/charts/exporter.yaml"
}

# Puts helm beside the programs, for the guide's commands.
need_helm() {
	"$ROOT/ci/setup-charts.sh"
	install "$BUILD/charts/helm" "$node/programs"
}

run_charts() {
	local out=$node/charts
	"$ROOT/ci/setup-charts.sh"
	mkdir -p "$out"
	check $JOB "helm lints the chart" "$BUILD/charts/helm" lint --strict "$ROOT/deploy/helm/gctgroup"
	render >"$out/user.yaml"
	render --set mode=kernel,claims=true,exporter.enabled=false >"$out/kernel.yaml"
	check $JOB "its manifests fit the schemas of Kubernetes $KUBERNETES_SCHEMAS" \
		is_valid "$out/user.yaml" "$out/kernel.yaml"
	sed 's/hostPID/hostPid/' "$out/user.yaml" >"$out/wrong.yaml"
	check $JOB "a misspelt field does not" eval '! is_valid "$out/wrong.yaml"'
	check $JOB "a ResourceSlice of the plugin does" is_valid "$ROOT/tests/kubernetes/resourceslice.json"
	check $JOB "the exporter reads gctd and does not administer it" exporter_only_reads
	check $JOB "the manifests for kustomize are the chart's" kustomize_is_the_chart
}

# This machine may have version 2 alone, or both. Of both, pods have a cgroup in each.
parts=("$@")
if [ $# -eq 0 ]; then
	parts=(charts images v2)
	if long; then
		parts+=(machine)
		! findmnt -rn -t cgroup /sys/fs/cgroup/pids >/dev/null || parts+=(v1)
	fi
fi
for part in "${parts[@]}"; do
	case $part in
	v1 | v2)
		need_programs "$node/programs"
		mv "$node/programs/mps-control" "$node/programs/nvidia-cuda-mps-control"
		need_helm
		run_node "$part"
		;;
	images)
		need_programs "$node/programs"
		run_images
		;;
	charts) run_charts ;;
	machine) run_kernel_mode ;;
	*) die "there is no part $part" ;;
	esac
done
finish $JOB
