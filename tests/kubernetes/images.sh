#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: images.sh CGROUP
#
# Runs in the namespaces that ci/test-kubernetes.sh makes: a gctd without a GPU, the plugin, and
# containers of podman with images of several kinds. Prints a line for each test.
set -u
CGROUP=$1
export PATH=/gct/bin:/gct/programs:/usr/sbin:/usr/bin KUBECONFIG=/run/kubeconfig HOME=/root
export PODMAN_IGNORE_CGROUPSV1_WARNING=1
. /gct/tests/cluster.sh

LIBRARY=/usr/lib/gctgroup/libgct_preload.so

# try WHAT command...: one test.
try() {
	local what=$1
	shift
	if "$@" >/tmp/last 2>&1; then
		printf 'ok %s\n' "$what"
	else
		cat /tmp/last
		printf 'FAILED %s\n' "$what"
	fi
}

is() {
	[ "$1" = "$2" ] || { echo "is $1, not $2"; return 1; }
}

# in_image ROOT OPTIONS COMMAND...: runs a container with a GPU of the profile and podman's OPTIONS.
# What it changes in its root file system goes with it.
in_image() {
	in_podman run --rm --network none --cgroup-parent "/$CGROUP/podman" --device gctgroup.dev/small=gpu0 \
		$2 --rootfs "/images/$1:O" "${@:3}"
}

# loads ROOT OPTIONS COMMAND LIBRARY...: the COMMAND cat has these libraries, and its loader says
# nothing.
loads() {
	local library
	in_image "$1" "$2" $3 /proc/self/maps >/tmp/maps 2>/tmp/errors || { cat /tmp/errors; return 1; }
	for library in "${@:4}"; do
		grep -q " $library\$" /tmp/maps || { cat /tmp/maps; echo "no $library"; return 1; }
	done
	! grep . /tmp/errors
}

# image NAME: makes a root file system with glibc, cat, env and busybox, which is static.
image() {
	local root=/images/$1 name
	mkdir -p $root/{bin,etc,dev,proc,sys,run,tmp,opt,lib64,usr/lib/x86_64-linux-gnu}
	cp /usr/bin/busybox /usr/bin/cat /usr/bin/env $root/bin
	ln -s busybox $root/bin/sh
	cp /lib64/ld-linux-x86-64.so.2 $root/lib64
	for name in libc.so.6 libdl.so.2 libpthread.so.0; do
		cp /usr/lib/x86_64-linux-gnu/$name $root/usr/lib/x86_64-linux-gnu
	done
	# Any library does.
	cp /usr/lib/x86_64-linux-gnu/libm.so.6 $root/opt/own.so
	cp /usr/lib/x86_64-linux-gnu/librt.so.1 $root/opt/other.so
}

configure >/gct/logs/configure.log 2>&1
start_gctd
start_plugin
await 10 [ -e /var/run/cdi/gctgroup.dev_small.json ]
for name in plain own pipe; do image $name; done

try "a program has the library" loads plain "" cat $LIBRARY
try "a program without an environment has it" loads plain "" "env -i cat" $LIBRARY
try "a pod's LD_PRELOAD stays" loads plain "-e LD_PRELOAD=/opt/own.so" cat $LIBRARY /opt/own.so
try "an entrypoint's stays, and takes nothing away" loads plain "" "env LD_PRELOAD=/opt/own.so cat" \
	$LIBRARY /opt/own.so
echo /opt/other.so >/images/own/etc/ld.so.preload
try "so does what an image preloads" loads own "-e LD_PRELOAD=/opt/own.so" cat \
	$LIBRARY /opt/own.so /opt/other.so
try "the image is as it was" grep -qx /opt/other.so /images/own/etc/ld.so.preload
try "a root that may only be read is no hindrance" loads plain --read-only cat $LIBRARY

# refuses WORDS ROOT OPTIONS: the container does not start, and these words say why.
refuses() {
	! in_image "$2" "$3" cat /dev/null 2>/tmp/errors || return
	cat /tmp/errors
	grep -qF "$1" /tmp/errors
}
busybox mkfifo /images/pipe/etc/ld.so.preload
try "a file that cannot be written refuses the container" refuses '/etc/ld.so.preload: it is no file' pipe ""
try "so does a mount over it" refuses 'the container mounts /etc/ld.so.preload' plain \
	"-v /dev/null:/etc/ld.so.preload"

# sees ROOT OPTIONS COMMAND SAYS: what a command prints in a container.
sees() {
	is "$(in_image "$1" "$2" sh -c "$3")" "$4"
}
try "a container that asks NVIDIA's runtime for all GPUs does so no more" sees plain \
	"-e NVIDIA_VISIBLE_DEVICES=all" 'echo $NVIDIA_VISIBLE_DEVICES' void
try "it has its GPU's node alone" sees plain "" 'cd /dev; echo nvidia[0-9]' nvidia0
try "it has libcuda where the loader searches" loads plain "" "env LD_PRELOAD=libcuda.so.1 cat" \
	/usr/lib/x86_64-linux-gnu/libcuda.so.1
try "and where that of Red Hat does" sees plain "" 'cd /usr/lib64; echo libcuda*' 'libcuda.so libcuda.so.1'
try "another GPU's node refuses the container" refuses 'the container has /dev/nvidia1, of which it has no share' \
	plain "--device /run/devices/nvidia1:/dev/nvidia1"
in_podman run --rm --network none --cgroup-parent "/$CGROUP/podman" --device gctgroup.dev/spread=gpu1 \
	--device gctgroup.dev/spread=gpu2 --rootfs /images/plain:O sh -c 'cd /dev; echo nvidia[0-9]' >/tmp/nodes
try "shares of two GPUs have both nodes" is "$(cat /tmp/nodes)" "nvidia1 nvidia2"

# The Debians that the setup could have. What plays a tenant needs the glibc of Debian 12.
limited() {
	is "$(in_image "$1" "-v /gct/programs/tenant:/tenant" /tenant --exit 512 600)" \
		$'can count on 8 TPCs\n512 MiB granted\n600 MiB refused'
}
for root in /gct/chroot/*; do
	name=${root##*/}
	release=$(. "$root/etc/os-release" && echo "$PRETTY_NAME")
	mkdir "/images/$name"
	mount --bind "$root" "/images/$name"
	try "a program of $release has the library" loads "$name" "" cat $LIBRARY
	try "and sees its GPU alone" sees "$name" "" 'cd /dev; echo nvidia[0-9]' nvidia0
	[ "$name" = older ] || try "and has the limits of its profile" limited "$name"
done
# Debian 11 has the loader of musl, which is Alpine's.
if [ -e /images/older ]; then
	started() {
		is "$(in_image older "-v /gct/programs/musl-program:/bin/musl-program" musl-program)" started
	}
	try "a program with musl starts, without it" started
fi
try "nothing is left of the groups" eval '! gctctl --user ls | grep ctr_'
