# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What the demo and the interactive machine are made of. Source this file after
# lib.sh and versions.sh; it builds the parts and sets the array machine.

demo_version=${NV_VERSION:-$NV_SOURCE_VERSION}
need_source "$demo_version"
NV_VERSION=$demo_version KDIR=$BUILD/linux/lean GCT_STOCK='' GCT_KUNIT='' "$ROOT/ci/kmod.sh"
. "$ROOT/ci/cuda-root.sh"
need_tools
need_guest_programs gctctl gct-selftest rm-client fakegpu-record
need_software_gpu "$(software_gpu_version "$demo_version")" "$BUILD/firmware"
machine=(
	"$GCT_VM" run --build "$BUILD" --nv "$demo_version" "${SOFTWARE_GPU[@]}" --gpus "${GPUS:-1}"
	--file "$GUEST_BIN/gctctl" "$GUEST_BIN/gct-selftest" "$GUEST_BIN/rm-tenant" "$GUEST_BIN/rm-launch"
	"$GUEST_BIN/rm-managed" "$GUEST_BIN/fakegpu-record" "$FIRMWARE"
)
if has_cuda && [ "$demo_version" = "$NV_SOURCE_VERSION" ]; then
	need_cuda "$BUILD/demo-cuda"
	machine+=(--memory 2048 --file "${cuda_files[@]}")
fi
