# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The files with which a machine runs programs on NVIDIA's libcuda. Source this
# file after lib.sh.
#
#   has_cuda                  whether the setup fetched the libraries
#   need_cuda DIR [FILE...]   makes the files in DIR, and leaves them in the array cuda_files;
#                             with further files, which go beside the program

has_cuda() {
	[ -e "$BUILD/cuda/root.tar" ]
}

need_cuda() {
	local dir=$1
	shift
	step "program on libcuda" cargo build --release --locked \
		--manifest-path "$ROOT/userspace/Cargo.toml" -p cuda-client
	rm -rf "$dir/usr"
	mkdir -p "$dir/usr/bin"
	cp "$CARGO_TARGET_DIR/release/cuda-client" "$@" "$dir/usr/bin"
	cp "$BUILD/cuda/root.tar" "$dir/root.tar"
	tar --owner=0 --group=0 -C "$dir" -rf "$dir/root.tar" usr/bin
	cuda_files=("$dir/root.tar:/root.tar")
}
