#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-rm.sh [KERNEL [FILTER]]
#
# Compares the structures of tests/rm-client, of the core and of the glue with the headers
# of each driver whose source is here, then runs rm-test in a machine with the patched driver
# and two software GPUs. KERNEL is lean, the default, debug, or none: the headers alone.
# FILTER chooses tests by a part of their name. Without one, those that tests/rm-client/long names
# run for `make test-long` only. The debug kernel runs all of them in eight machines.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

JOB=${JOB:-rm}
KERNEL=${1:-lean}
FILTER=${2:-}
SHORT=$(without_long "$ROOT/tests/rm-client/long")
# Twelve minutes beside another job, and twice as long for `make test-long`. KASAN and lockdep under
# emulation take several times as long.
SECONDS_MAX=1500
[ "$KERNEL" = lean ] && ! long || SECONDS_MAX=3000

OUT=$BUILD/$JOB

# The structures with which the glue calls the resource manager.
test_operations() {
	local source=$BUILD/nv/$1/src
	cc -Wall -Werror -DNV_VERSION_STRING="\"$1\"" -I"$ROOT/rust/helpers" \
		-I"$ROOT/rust/include" -I"$source/common/sdk/nvidia/inc" \
		-I"$source/nvidia/arch/nvalloc/unix/include" "$ROOT/tests/patches/rmapi.c" -o "$OUT/rmapi-$1" &&
		"$OUT/rmapi-$1"
}

# Asserts in C that each structure and number is what the headers say.
test_layouts() {
	local version=$1 source=$BUILD/nv/$1/src open=$BUILD/nv/$1/kernel-open
	"$GUEST_BIN/rm-test" layouts "$version" >"$OUT/layouts-$version.c"
	grep -c _Static_assert "$OUT/layouts-$version.c"
	cc -fsyntax-only -I"$source/common/sdk/nvidia/inc" \
		-I"$source/nvidia/arch/nvalloc/unix/include" \
		-isystem "$open/nvidia-uvm" -idirafter "$open/common/inc" "$OUT/layouts-$version.c"
}

rm -f "$RESULTS/$JOB"
mkdir -p "$OUT"
need_driver
need_tools
need_guest_programs rm-client
for version in $NV_VERSIONS $NV_PORTED_VERSIONS; do
	# A tree may have been unpacked without the resource manager.
	if [ -d "$BUILD/nv/$version/src/common/sdk" ]; then
		check $JOB "$version: structures are those of the headers" test_layouts "$version"
		check $JOB "$version: the glue's structures are, too" test_operations "$version"
	else
		note "$version: its headers are not unpacked, structures not compared"
	fi
done

[ "$KERNEL" != none ] || {
	finish $JOB
	exit
}
need_software_gpu "$VERSION" "$OUT/firmware"
NV_SRC= NV_VERSION=$VERSION KDIR=$BUILD/linux/$KERNEL "$ROOT/ci/kmod.sh"

# machine NAME FILTER [ARGUMENT...]: runs rm-test, with more arguments for gct-vm.
machine() {
	local name=$1 filter=$2
	shift 2
	printf '%s\n' "$filter" >"$OUT/filter"
	"$GCT_VM" run --build "$BUILD" --kernel "$KERNEL" --nv "$VERSION" "${SOFTWARE_GPU[@]}" \
		--variant patched --gpus 2 \
		--file "$GUEST_BIN/rm-test" "$OUT/filter:/test/filter" \
		"$FIRMWARE" \
		--script "$ROOT/tests/rm-client/vm.sh" --ktap --quiet --timeout "$SECONDS_MAX" \
		--log "$OUT/$name.log" --results "$RESULTS/$JOB" "$@" || true
}

if [ "$KERNEL" = debug ] && [ -z "$FILTER" ]; then
	for part in 1 2 3 4 5 6 7 8; do
		machine "debug-$part" "$part/8"
	done
else
	machine "$KERNEL" "${FILTER:-$SHORT}"
fi
# What the resource manager refuses, and which of them: sent.rs says the same.
freezes=()
for number in 2 3 4 5 6 7 8; do
	freezes+=("--gpu-arg=--refuse=NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS:$number:0x56")
done
[ -n "$FILTER" ] || machine "$KERNEL-refused" "refused refused" \
	--gpu-arg=--refuse=NVA06C_CTRL_CMD_SET_TIMESLICE:3:0x1b \
	--gpu-arg=--refuse=NVA06C_CTRL_CMD_SET_TIMESLICE:9:0x1b "${freezes[@]}"
# A GPU whose memory is full. Lockdep reports an order of locks of NVIDIA's driver then.
[ -n "$FILTER" ] || [ "$KERNEL" != lean ] || machine lean-full "full ${SHORT:-full}" --gpu-arg=--fb=768

# many NAME FILTER: for `make test-long` alone, on the lean kernel.
many() {
	[ -n "$FILTER" ] || [ "$KERNEL" != lean ] || ! long || machine "lean-$1" "$2"
}

# Everything but the tests of owned channels once more, with owned channels only.
many owned "owned !owned"
# A thousand processes at once, each with a channel group.
many crowd "crowd 1000"
many channels "channels 200"
many programs "programs 200"
many deaths "deaths 100"
many accounts "accounts 1100"
# A thousand in all, by four seeds: a process of the test has room for some 500 channels.
for count in 250 251 252 253; do
	many "batches-$count" "batches $count"
done
many shorts "shorts 200"
# Random launches, states of rings, deaths, switches of limits and pauses, for some minutes each.
for storm in "launches 10000" "states 1000000" "deaths 1000" "switches 1000" "shadows 1000" "pauses 1000"; do
	many "${storm% *}" "storm-$storm"
done
finish $JOB
