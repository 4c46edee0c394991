#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: test-cuda.sh [FILTER [VARIANT]]
#
# Runs programs on NVIDIA's own libcuda and NVML in a machine with a software GPU: the tests of
# tests/cuda-client whose names FILTER chooses, without limits and under each. VARIANT is that of
# the modules; `stock` has no limits to test.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

JOB=cuda
OUT=$BUILD/cuda-run
SECONDS_MAX=900

rm -f "$RESULTS/$JOB"
mkdir -p "$OUT/root/usr/bin"
[ -e "$BUILD/cuda/root.tar" ] || die "there is no build/cuda: run make setup with GCT_NONFREE=yes"
need_tools
need_firmware "$OUT/firmware"
step "program on libcuda" cargo build --release --locked \
	--manifest-path "$ROOT/userspace/Cargo.toml" -p cuda-client
variant=${2:-patched}
NV_VERSION=$NV_SOURCE_VERSION GCT_STOCK=$([ "$variant" != stock ] || echo 1) "$ROOT/ci/kmod.sh"

gcc -shared -fPIC -O1 -Wall -Wextra -Wno-unused-parameter -o "$OUT/sockets.so" \
	"$ROOT/tests/cuda-client/sockets.c"
cp "$CARGO_TARGET_DIR/release/cuda-client" "$OUT/root/usr/bin"
cp "$BUILD/cuda/root.tar" "$OUT/root.tar"
tar --owner=0 --group=0 -C "$OUT/root" -rf "$OUT/root.tar" usr/bin/cuda-client
printf '%s\n' "${1:-}" >"$OUT/filter"
"$GCT_VM" run --build "$BUILD" --nv "$NV_SOURCE_VERSION" --kernel lean --variant "$variant" --gpus 1 \
	--memory 2048 --file "$OUT/root.tar:/root.tar" "$OUT/filter" "$OUT/sockets.so" "$FIRMWARE" \
	--script "$ROOT/tests/cuda-client/vm.sh" --ktap --quiet --timeout $SECONDS_MAX \
	--log "$OUT/console.log" --results "$RESULTS/$JOB" || true
finish $JOB
