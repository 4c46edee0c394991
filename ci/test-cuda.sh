#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-cuda.sh [FILTER]
#
# Runs programs on NVIDIA's own libcuda and NVML in a machine with a software GPU: the tests of
# tests/cuda-client whose names FILTER chooses, without limits and under some.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/cuda-root.sh"

JOB=cuda
OUT=$BUILD/cuda-run
SECONDS_MAX=900

rm -f "$RESULTS/$JOB"
has_cuda || die "there is no build/cuda: run make setup with GCT_NONFREE=yes"
need_tools
need_firmware "$OUT/firmware"
need_cuda "$OUT"
NV_VERSION=$NV_SOURCE_VERSION "$ROOT/ci/kmod.sh"

printf '%s\n' "${1:-}" >"$OUT/filter"
"$GCT_VM" run --build "$BUILD" --nv "$NV_SOURCE_VERSION" --kernel lean --variant patched --gpus 1 \
	--memory 2048 --file "${cuda_files[@]}" "$OUT/filter" "$FIRMWARE" \
	--script "$ROOT/tests/cuda-client/vm.sh" --ktap --quiet --timeout $SECONDS_MAX \
	--log "$OUT/console.log" --results "$RESULTS/$JOB" || true
finish $JOB
