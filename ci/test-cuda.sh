#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-cuda.sh [FILTER]
#
# Runs programs on NVIDIA's own libcuda, NVML and MPS in machines with a software GPU: the tests of
# tests/cuda-client whose names FILTER chooses, on the patched driver, and under the library of the
# user-space mode on the stock one.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/cuda-root.sh"

JOB=cuda
OUT=$BUILD/cuda-run
SECONDS_MAX=900

# run_machine VARIANT TESTS FILTER [FILE...]: runs tests of a kind on a variant of the modules, in a
# machine with further files.
run_machine() {
	local variant=$1
	printf '%s\n' "$2" >"$OUT/tests"
	printf '%s\n' "$3" >"$OUT/filter"
	shift 3
	"$GCT_VM" run --build "$BUILD" --nv "$NV_SOURCE_VERSION" --kernel lean --variant "$variant" --gpus 1 \
		--memory 2048 --file "${cuda_files[@]}" "$OUT/tests" "$OUT/filter" "$FIRMWARE" "$@" \
		--script "$ROOT/tests/cuda-client/vm.sh" --ktap --quiet --timeout $SECONDS_MAX \
		--log "$OUT/$variant.log" --results "$RESULTS/$JOB" || true
}

rm -f "$RESULTS/$JOB"
has_cuda || die "there is no build/cuda: run make setup with GCT_NONFREE=yes"
need_tools
need_firmware "$OUT/firmware"
need_cuda "$OUT"
NV_VERSION=$NV_SOURCE_VERSION "$ROOT/ci/kmod.sh"
run_machine patched limits "${1:-}"

need_programs "$OUT/programs"
GCT_STOCK=1 NV_VERSION=$NV_SOURCE_VERSION "$ROOT/ci/kmod.sh"
run_machine stock daemon "${1:-}" "$OUT"/programs/{gctd,gctctl,libgct_preload.so}
finish $JOB
