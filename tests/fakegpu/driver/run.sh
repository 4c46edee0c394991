#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: run.sh [KERNEL/VARIANT...]
#
# Boots the test machine with two software GPUs and lets the real driver
# 535.261.03 initialise them, with its default settings. Each argument is a
# kernel and a build of the module; the default is lean/stock and lean/patched.
# The modules have to be built (ci/kmod.sh). What lockdep says of RM's own locks on
# the debug kernel stands in gctgroup-docs/fakegpu.md.
# shellcheck source=../../../ci/lib.sh
. "$(dirname "$0")/../../../ci/lib.sh"

VERSION=535.261.03
HERE=$ROOT/tests/fakegpu/driver
FIRMWARE=$BUILD/fakegpu
# A minute on an idle machine; the debug kernel's KASAN takes ten times as long.
SECONDS_MAX=600

need_tools >&2
FILE=$("$(dirname "$GCT_VM")/fakegpu-firmware" "$FIRMWARE")

[ $# -gt 0 ] || set -- lean/stock lean/patched
for run in "$@"; do
	"$GCT_VM" run --build "$BUILD" --nv $VERSION --kernel "${run%/*}" --variant "${run#*/}" --gpus 2 \
		--file "$FILE:/lib/firmware/${FILE#"$FIRMWARE/"}" --script "$HERE/guest.sh" \
		--ktap --quiet --timeout $SECONDS_MAX --results "$RESULTS/fakegpu" \
		--log "$BUILD/log/fakegpu-${run//\//-}.log"
done
