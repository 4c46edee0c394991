# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs a root file system in a machine with cgroup version 2 alone, the patched driver and a
# software GPU. Source this file after lib.sh and versions.sh.

# need_machine PACKAGE...: builds the machine, rm-client for it, and these packages' programs.
need_machine() {
	need_tools
	need_guest_programs rm-client "$@"
	"$ROOT/ci/setup-linux-node.sh"
	NV_VERSION=$NV_SOURCE_VERSION KDIR=$BUILD/linux/node "$ROOT/ci/kmod.sh"
}

# run_machine JOB NAME ROOT [COMMAND...]: runs ROOT's /test.sh there, and counts its results. With a
# command, which is given the runner's, the machine has a network.
run_machine() {
	local job=$1 name=$2 root=$3 network=
	shift 3
	[ $# -eq 0 ] || network=--network
	need_firmware "$root.firmware"
	step "root file system of $name" tar -C "$root" -cf "$root.tar" .
	"$@" "$GCT_VM" run --build "$BUILD" --kernel node --nv "$NV_SOURCE_VERSION" --gpus 1 $network \
		--file "$root.tar:/root.tar" "$FIRMWARE" \
		--script "$ROOT/tests/qemu/root.sh" --ktap --quiet --timeout 1800 \
		--log "$BUILD/log/$job-$name.log" --results "$RESULTS/$job" || true
	rm "$root.tar"
}
