# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Starts and stops the programs of a cluster of one node. Source this file; do not run it.

. /gct/tests/image.sh
. /gct/tests/control-plane.sh

configure() {
	printf '127.0.0.1 localhost\n%s node1\n' $ADDRESS >/etc/hosts
	: >/etc/resolv.conf
	busybox hostname node1
	ip link add veth0 type veth peer name veth1
	ip addr add $ADDRESS/24 dev veth0
	ip link set veth0 up
	ip link set veth1 up
	# The packages are unpacked and not installed, so nothing has chosen a shell.
	[ -e /bin/sh ] || ln -s bash /bin/sh
	# A container's mounts must be seen by the runtime.
	mount --make-rshared /
	mkdir -p /var/lib/{kubelet,containerd} /run/kubernetes /etc/{containerd,cni/net.d,gctgroup}
	# This container may not lower anybody's oom_score_adj.
	cat >/etc/containerd/config.toml <<-'TOML'
		version = 2
		[plugins."io.containerd.grpc.v1.cri"]
		  enable_cdi = true
		  restrict_oom_score_adj = true
		  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
		  sandbox_image = "registry.k8s.io/pause:3.8"
		  [plugins."io.containerd.grpc.v1.cri".containerd]
		    snapshotter = "native"
		    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
		      runtime_type = "io.containerd.runc.v2"
		      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
		        BinaryName = "/run/gct-runc"
		  [plugins."io.containerd.grpc.v1.cri".cni]
		    bin_dir = "/usr/lib/cni"
		    conf_dir = "/etc/cni/net.d"
		[plugins."io.containerd.nri.v1.nri"]
		  disable = false
	TOML
	cat >/etc/cni/net.d/10-net.conflist <<-'JSON'
		{"cniVersion": "0.4.0", "name": "net", "plugins": [{"type": "ptp", "ipam": {
			"type": "host-local", "subnet": "10.98.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}]}
	JSON
	cat >/run/kubernetes/kubelet.yaml <<-YAML
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
		authorization: {mode: AlwaysAllow}
		cgroupDriver: cgroupfs
		cgroupRoot: /$CGROUP
		failSwapOn: false
		oomScoreAdj: 0
		nodeStatusUpdateFrequency: 1s
		maxPods: 250
		kubeAPIQPS: 100
		kubeAPIBurst: 200
		eventRecordQPS: 0
		syncFrequency: 1s
		evictionHard: {memory.available: "10Mi"}
		enforceNodeAllocatable: []
		makeIPTablesUtilChains: false
	YAML
	configure_control_plane
	cat >/etc/gctgroup/profiles.toml <<-'TOML'
		[profile.small]
		slots = 4
		gpus = [0]
		gmem.limit = "1G"
		tpc.quota = 8
		tpc.steal = 0

		[profile.packed]
		slots = 3
		gpus = [1, 2]
		place = "pack"

		[profile.spread]
		slots = 3
		gpus = [1, 2]

		[profile.side]
		slots = 2
		gpus = [3]
		share = "mps"

		[nri]
		gpus = [4]
		gmem.limit = "1G"
	TOML
	# GPUs of which only the driver's files exist.
	local minor bus
	for minor in 0 1 2 3 4; do
		bus=0000:0$((minor + 1)):00.0
		mkdir -p "/run/gpus/$bus"
		printf 'Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeef%s\n%s' \
			$minor "Bus Location: 	 $bus"$'\n'"Device Minor: 	 $minor"$'\n' >"/run/gpus/$bus/information"
	done
	# The plugin in front of runc, which takes containers from their MPS server before it kills them.
	ln -s /gct/programs/gct-device-plugin /run/gct-runc
	# A driver of which only a library exists: any does.
	mkdir -p /run/driver/usr/lib64
	cp /usr/lib/x86_64-linux-gnu/librt.so.1 /run/driver/usr/lib64/libcuda.so.550.54.14
	mkdir -p /run/devices
	for node in nvidia0 nvidia1 nvidia2 nvidia3 nvidia4 nvidiactl nvidia-uvm; do mknod /run/devices/$node c 1 3; done
}

# make_image NAME...: prints an image with busybox, gctctl, the tenant, their libraries, and the
# program that stands in for NVIDIA's MPS control.
make_image() {
	local folder
	folder=$(mktemp -d)
	mkdir -p "$folder"/{bin,lib64,usr/lib/x86_64-linux-gnu}
	cp /usr/bin/busybox /gct/programs/{gctctl,tenant,nvidia-cuda-mps-control} "$folder/bin/"
	cp /lib64/ld-linux-x86-64.so.2 "$folder/lib64/"
	cp /usr/lib/x86_64-linux-gnu/{libc.so.6,libdl.so.2,libpthread.so.0,libgcc_s.so.1} "$folder/usr/lib/x86_64-linux-gnu/"
	# A library of the pods' own: any does.
	cp /usr/lib/x86_64-linux-gnu/librt.so.1 "$folder/usr/lib/own.so"
	for applet in sh sleep; do ln -s busybox "$folder/bin/$applet"; done
	pack_image "$folder" "$@"
	rm -r "$folder"
}

# make_base NAME: prints an image with busybox, in place of the base of deploy/Containerfile.
make_base() {
	local folder name
	folder=$(mktemp -d)
	mkdir -p "$folder"/{bin,lib64,usr/lib/x86_64-linux-gnu}
	cp /usr/bin/busybox "$folder/bin/"
	for name in sh cp mv ln; do ln -s busybox "$folder/bin/$name"; done
	cp /lib64/ld-linux-x86-64.so.2 "$folder/lib64/"
	cp /usr/lib/x86_64-linux-gnu/{libc.so.6,libgcc_s.so.1} "$folder/usr/lib/x86_64-linux-gnu/"
	pack_image "$folder" "$1"
	rm -r "$folder"
}

import_images() {
	make_image registry.k8s.io/pause:3.8 localhost/busybox:1 >/tmp/image.tar
	ctr -n k8s.io images import /tmp/image.tar
	podman load -i /tmp/image.tar
	# The image of the chart, by its recipe and without a network.
	make_base localhost/base:1 >/tmp/image.tar
	podman load -i /tmp/image.tar
	podman build --pull=never --build-arg BASE=localhost/base:1 -f /gct/deploy/Containerfile \
		-t localhost/gctgroup:1 /gct/programs
	rm /tmp/image.tar
	podman save -o /tmp/image.tar localhost/gctgroup:1
	ctr -n k8s.io images import /tmp/image.tar
}

# Is the docker that the kubelet looks for when it starts: without an answer it waits for 5 s. It
# asks for a version next, and leaves docker alone when there is none.
start_docker() {
	mkdir -p /run/docker/v1.24
	echo '{"DockerRootDir": "/nowhere"}' >/run/docker/v1.24/info
	start docker busybox httpd -f -p 127.0.0.1:2375 -h /run/docker
}

start_cluster() {
	configure >/gct/logs/configure.log 2>&1
	start containerd containerd
	start_api_server
	start_docker
	await 20 ctr version
	import_images >/gct/logs/images.log 2>&1
	start_deciders
}

start_kubelet() {
	start kubelet kubelet --config /run/kubernetes/kubelet.yaml --kubeconfig="$KUBECONFIG" \
		--docker=tcp://127.0.0.1:2375 \
		--container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
		--hostname-override=node1 --node-ip=$ADDRESS
}

# in_podman ARGUMENT...: runs podman below the job's cgroup, which systemd does not manage.
in_podman() {
	podman --runtime runc --cgroup-manager cgroupfs "$@"
}

# It has a user of its own, as its unit says.
start_gctd() {
	install -d -o 900 -g 900 /run/gctgroup
	start gctd setpriv --reuid 900 --regid 900 --clear-groups gctd --gpus /run/gpus --tpcs 0-65
	await 10 gctctl --user ls
}

start_plugin() {
	start plugin gct-device-plugin serve --dir /run/gctgroup --devices /run/devices --driver-root /run/driver --interval 1 \
		--mps-control /gct/programs/nvidia-cuda-mps-control
}
