#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Prints rust/gct_kernel/bindings.rs: what rust/helpers/gct_helpers.h and
# rust/include/gct.h declare, as Rust sees it. ci/test-gate.sh compares the
# output with the committed file.
#
#   ci/bindings.sh >rust/gct_kernel/bindings.rs

. "$(dirname "$0")/lib.sh"
. "$BUILD/env.sh"

cd "$ROOT"
bindgen rust/helpers/gct_helpers.h \
	--rust-target 1.85 --rust-edition 2021 --use-core --ctypes-prefix kernel::ffi \
	--no-layout-tests --no-doc-comments --disable-header-comment --merge-extern-blocks \
	--allowlist-function 'gct_.*' --blocklist-function "gct_tracks.*" \
	--allowlist-type 'gct_.*' --allowlist-var 'gct_.*|GCT_ABI.*|GCT_GPU.*|GCT_UVM.*|GCT_WORKER.*|GCT_DOOR.*|GCT_MAP_.*' \
	--blocklist-type 'file|file_operations|seq_file|task_struct|workqueue_struct|ssize_t|__ssize_t' \
	--raw-line '// SPDX-License-Identifier: GPL-2.0 OR MIT' --raw-line '' \
	--raw-line '// Made by ci/bindings.sh; not edited by hand.' \
	--raw-line 'use kernel::bindings::{file, file_operations, seq_file, task_struct, workqueue_struct};' \
	-- -std=c11 -Irust/include -Irust/helpers
