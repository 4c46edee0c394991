#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-cuda.sh [FILTER]
#
# Runs programs on NVIDIA's own libcuda, NVML and MPS in machines with a software GPU: the tests of
# tests/cuda-client whose names FILTER chooses, on the patched driver, and under the library of the
# user-space mode on the stock one: there without a FILTER only what differs. `make test-long` runs
# all of them there, too, and on the patched driver once more on the debug kernel.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/cuda-root.sh"

JOB=cuda
OUT=$BUILD/cuda-run

# run_machine KERNEL VARIANT TESTS FILTER: runs the chosen tests of a kind on a kernel and a variant
# of the modules. KASAN and lockdep under emulation take several times as long.
run_machine() {
	local kernel=$1 memory=2048 limit=900
	shift
	[ "$kernel" = lean ] || memory=4096 limit=7200
	KDIR=$BUILD/linux/$kernel NV_VERSION=$NV_SOURCE_VERSION "$ROOT/ci/kmod.sh"
	printf '%s\n' "$2" >"$OUT/tests"
	printf '%s\n' "$3" >"$OUT/filter"
	"$GCT_VM" run --build "$BUILD" --nv "$NV_SOURCE_VERSION" --kernel "$kernel" --variant "$1" --gpus 1 \
		--memory "$memory" --file "${cuda_files[@]}" "$OUT/tests" "$OUT/filter" "$FIRMWARE" \
		--script "$ROOT/tests/cuda-client/vm.sh" --ktap --quiet --timeout "$limit" \
		--log "$OUT/$kernel-$1.log" --results "$RESULTS/$JOB" || true
}

rm -f "$RESULTS/$JOB"
has_cuda || die "there is no build/cuda: run make setup with GCT_NONFREE=yes"
need_tools
need_firmware "$OUT/firmware"
need_programs "$OUT/programs"
need_cuda "$OUT" "$OUT"/programs/{gctd,gctctl,libgct_preload.so}

filter=${1:-}
run_machine lean patched limits "$filter"
! long || run_machine debug patched limits "$filter"
if [ -z "$filter" ] && ! long; then
	filter=gctd.,limits.mask,limits.memory,beside.mask_changes,ipc.is_charged,mps.masks
fi
GCT_STOCK=1 run_machine lean stock daemon "$filter"
finish $JOB
