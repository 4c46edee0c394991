#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The demo, and the shell's script, as tests: on every driver version, with one,
# two and eight GPUs. NV_VERSION=580.142 NV_SRC=DIR adds that driver's tour, and
# takes it for several GPUs.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

job=demo
rm -f "$RESULTS/$job"

# demo_ends_well VERSION
demo_ends_well() {
	local output
	output=$(NV_VERSION=$1 "$ROOT/ci/demo.sh") || true
	printf '%s\n' "$output"
	[ "$(tail -n 1 <<<"$output")" = "demo: ok" ]
}

# gpus_are_shown COUNT: the tree and the driver list as many GPUs as there are.
gpus_are_shown() {
	local script=$BUILD/gpus.sh
	cat >"$script" <<-SCRIPT
		. /test/lib.sh
		load_nvidia && load_uvm || exit
		ls \$GCT/gpus
		[ "\$(ls \$GCT/gpus | wc -l)" -eq $1 ] && [ "\$(ls /proc/driver/nvidia/gpus | wc -l)" -eq $1 ] &&
			[ "\$(cat \$GCT/gpus/*/pci | sort -u | wc -l)" -eq $1 ] && unload_nvidia
	SCRIPT
	(
		GPUS=$1
		. "$ROOT/ci/demo-parts.sh"
		"${machine[@]}" --quiet --script "$script"
	)
}

versions=$NV_VERSIONS
[ "$(software_gpu_version "${NV_VERSION:-}")" = "$NV_SOURCE_VERSION" ] || versions+=" $NV_VERSION"
need_source "${NV_VERSION:-}"
for version in $versions; do
	check $job "$version: the demo ends with \"demo: ok\"" demo_ends_well "$version"
done
for count in 2 8; do
	check $job "$count GPUs are shown in the tree" gpus_are_shown $count
done
finish $job
