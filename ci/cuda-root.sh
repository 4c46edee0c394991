# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The files with which a machine runs programs on NVIDIA's libcuda. Source this
# file after lib.sh.
#
#   has_cuda           whether the setup fetched the libraries
#   need_cuda DIR      makes the files in DIR, and leaves them in the array cuda_files

has_cuda() {
	[ -e "$BUILD/cuda/root.tar" ]
}

need_cuda() {
	local dir=$1
	step "program on libcuda" cargo build --release --locked \
		--manifest-path "$ROOT/userspace/Cargo.toml" -p cuda-client
	mkdir -p "$dir/usr/bin"
	gcc -shared -fPIC -O1 -Wall -Wextra -Wno-unused-parameter -o "$dir/sockets.so" \
		"$ROOT/tests/cuda-client/sockets.c"
	cp "$CARGO_TARGET_DIR/release/cuda-client" "$dir/usr/bin"
	cp "$BUILD/cuda/root.tar" "$dir/root.tar"
	tar --owner=0 --group=0 -C "$dir" -rf "$dir/root.tar" usr/bin/cuda-client
	cuda_files=("$dir/root.tar:/root.tar" "$dir/sockets.so")
}
