# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Trees with the first N patches of a series, without gctgroup's sources, and
# their build. ci/test-patches.sh sources this file after lib.sh.
#
# The store keeps each prefix's instructions. One that it lacks is built in a work
# tree of its own, build/patches/VERSION/N, which stays, so that only what a
# changed patch touches is compiled again.

KDIR=$BUILD/linux/lean
. "$ROOT/ci/kmod-kernel.sh"
. "$ROOT/ci/compiler-cache.sh"

# series_dir VERSION: where write_series puts the plain series of a version.
series_dir() {
	printf '%s/patches/%s/series' "$BUILD" "$1"
}

series_of() {
	cat "$(series_dir "$1")/series"
}

# write_series VERSION: with exact line numbers if the driver is here.
write_series() {
	local source=()
	[ ! -d "$(pristine_tree "$1")" ] || source=("$(pristine_tree "$1")")
	"$ROOT/ci/series.py" write "$1" "$(series_dir "$1")" "${source[@]}"
}

pristine_tree() {
	printf '%s/nv/%s/kernel-open' "$BUILD" "$1"
}

# base_field VERSION NAME: what BASE says of a version.
base_field() {
	sed -n "/^\[$1\]$/,/^\[/s/^$2: //p" "$ROOT/open-gpu-kernel-modules-patches/BASE"
}

# Files of the pristine tree that the series changes; new files are not there.
touched_files() {
	local file
	cat "$(series_dir "$1")"/[0-9]*.patch | sed -n 's,^--- a/,,p' | LC_ALL=C sort -u |
		while read -r file; do
			[ ! -e "$(pristine_tree "$1")/$file" ] || printf '%s\n' "$file"
		done
}

# copy_pristine VERSION DIR: what the two modules are built from.
copy_pristine() {
	rsync -a --exclude '*.o_binary' --exclude /nvidia-drm --exclude /nvidia-modeset \
		--exclude /nvidia-peermem --exclude /debian "$(pristine_tree "$1")/" "$2/"
}

# apply_patch DIR FILE [OPTION...]: dies on fuzz, offset or a reject.
apply_patch() {
	local dir=$1 file=$2 output
	shift 2
	output=$(patch --directory="$dir" --strip=1 --fuzz=0 --no-backup-if-mismatch \
		--reject-file=- "$@" --input="$file") || die "$(basename "$file"): $output"
	case $output in
	*offset* | *fuzz*) die "$(basename "$file") does not fit exactly: $output" ;;
	esac
}

# prefix_dir VERSION N
prefix_dir() {
	printf '%s/patches/%s/%d' "$BUILD" "$1" "$2"
}

# source_dir VERSION: the source of the prefix that was staged last.
source_dir() {
	printf '%s/patches/%s/source' "$BUILD" "$1"
}

# stage_prefix VERSION N: adds patch N to the source of the prefix before it.
stage_prefix() {
	local version=$1 number=$2 source
	source=$(source_dir "$version")
	if [ "$number" -eq 1 ]; then
		rm -rf "$source"
		mkdir -p "$source"
		copy_pristine "$version" "$source"
	fi
	[ "$number" -eq 1 ] || [ "$(cat "$source.staged")" = $((number - 1)) ] ||
		die "patches 1-$((number - 1)) are not staged"
	rm -f "$source.staged"
	apply_patch "$source" "$(series_dir "$version")/$(series_of "$version" | sed -n "${number}p")" --forward
	echo "$number" >"$source.staged"
}

# compile_prefix DIR VERSION N: builds the staged source in its work tree; DIR gets
# the instructions.
compile_prefix() {
	local dir=$1 version=$2 number=$3 tree
	tree=$(prefix_dir "$version" "$number")
	[ "$(cat "$(source_dir "$version").staged")" = "$number" ] || die "patches 1-$number are not staged"
	mkdir -p "$tree"
	# By content, so that make sees only what really changed.
	rsync -rlpc --delete --exclude '*.o' --exclude '*.o_binary' --exclude '.*' --exclude '*.ko' \
		--exclude '*.mod' --exclude '*.mod.c' --exclude '*.d' --exclude /conftest \
		--exclude /Module.symvers --exclude /modules.order --exclude nv_compiler.h \
		"$(source_dir "$version")/" "$tree/" || die "cannot write $tree"
	ln -sfn "$(pristine_tree "$version")/nvidia/nv-kernel.o_binary" "$tree/nvidia/nv-kernel.o_binary"
	rm -f "$tree/nvidia.ko" "$tree/nvidia-uvm.ko"
	with_compiler_cache make -C "$tree" -j"$JOBS" modules SYSSRC="$kernel_source" SYSOUT="$KDIR" \
		NV_EXCLUDE_KERNEL_MODULES="nvidia-drm nvidia-modeset nvidia-peermem"
	[ -e "$tree/nvidia.ko" ] && [ -e "$tree/nvidia-uvm.ko" ] || die "patches 1-$number do not build"
	instructions "$tree" | zstd -q -f -o "$dir/instructions.zst"
}

# build_prefix VERSION N: builds the staged prefix, unless the store has its
# instructions: no source of ours is in it, so they depend on the driver, the
# patches, the kernel and the compiler alone. Their path is left in the variable
# prefix_instructions.
build_prefix() {
	local version=$1 number=$2 key patches
	mapfile -t patches < <(series_of "$version" | head -n "$number" | sed "s,^,@$(series_dir "$version")/,")
	key=$(content_key "$(readlink -f "$(pristine_tree "$version")")" "$(kernel_identity)" \
		"$("$kernel_compiler" --version)" "@$ROOT/ci/patches-tree.sh" "${patches[@]}")
	build_once nv-prefix "$key" "$version: patches 1-$number" compile_prefix "$version" "$number"
	prefix_instructions=$built/instructions.zst
}

# instructions TREE: the disassembly of every object of the interface layer,
# relocations included; not NVIDIA's prebuilt core.
instructions() {
	local tree=$1 object
	for object in "$tree"/nvidia/*.o "$tree"/nvidia-uvm/*.o; do
		case $object in
		*/nv-kernel.o | */nv-interface.o) continue ;;
		esac
		printf '%s\n' "${object#"$tree"/}"
		objdump -dr --no-show-raw-insn -j .text -j .init.text -j .exit.text -j .text.unlikely \
			"$object" 2>/dev/null | sed 1,2d
	done
}

# same_instructions STOCK.s PREFIX.s: line by line. A number loaded into a
# register or pushed may have grown by as many lines as the series adds to a file:
# it is __LINE__, which the driver passes to its messages and allocation records.
same_instructions() {
	paste -d $'\001' "$1" "$2" | awk -F '\001' -v shift_max=40 '
		function hex(s,  i, v) {
			for (i = 1; i <= length(s); i++)
				v = v * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1
			return v
		}
		function line_number(s) {
			if (!match(s, /(mov +\$0x[0-9a-f]+,%|push +\$0x[0-9a-f]+$)/)) return -1
			s = substr(s, RSTART, RLENGTH)
			gsub(/^.*0x|,%$/, "", s)
			return hex(s)
		}
		function frame(s) { sub(/\$0x[0-9a-f]+/, "$N", s); return s }
		$1 == $2 { same++; next }
		{
			shift = line_number($2) - line_number($1)
			if (line_number($1) > 0 && frame($1) == frame($2) && shift > 0 && shift <= shift_max)
				next
			print "stock: " $1 "\nhere:  " $2
			if (++different == 20) exit
		}
		END { exit different > 0 || same < 10000 }'
}
