#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The real driver, stock and patched, initialises the software GPUs, runs
# channels on them and lets them go.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

job=fakegpu
rm -f "$RESULTS/$job"
mkdir -p "$RESULTS"
export NV_VERSION=$NV_SOURCE_VERSION KDIR=$BUILD/linux/lean
GCT_STOCK=1 "$ROOT/ci/kmod.sh"
GCT_STOCK='' "$ROOT/ci/kmod.sh"
"$ROOT/tests/fakegpu/driver/run.sh" lean/stock lean/patched || true
finish $job
