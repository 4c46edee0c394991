# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Trees with the first N patches of a series, without gctgroup's sources, and
# their build. ci/test-patches.sh sources this file after lib.sh.
#
# Each prefix keeps a work tree of its own between runs, so that only what a
# changed patch touches is compiled again: build/patches/VERSION/N.

kernel_output=$BUILD/linux/lean
kernel_source=$BUILD/linux/src

series_dir() {
	printf '%s/open-gpu-kernel-modules-patches/%s' "$ROOT" "$1"
}

series_of() {
	sed 's/#.*//; /^[[:space:]]*$/d' "$(series_dir "$1")/series"
}

pristine_tree() {
	printf '%s/nv/%s/kernel-open' "$BUILD" "$1"
}

base_field() {
	sed -n "s/^$2: //p" "$(series_dir "$1")/BASE"
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

# seed_prefix VERSION N: a tree without objects starts as a copy of one that has
# nearly the same: the prefix before it, or what `make kmod GCT_STOCK=1` built.
seed_prefix() {
	local version=$1 number=$2 tree seed
	tree=$(prefix_dir "$version" "$number")
	seed=$(prefix_dir "$version" $((number - 1)))
	[ "$number" -gt 1 ] || seed=$BUILD/work/$version/lean/stock
	if [ ! -e "$tree/nvidia/nv.o" ] && [ -e "$seed/nvidia/nv.o" ]; then
		rm -rf "$tree"
		mkdir -p "$(dirname "$tree")"
		# The lock of kmod.sh, which another job may be building the stock tree with.
		flock "$seed.lock" cp -a "$seed" "$tree"
	fi
}

# stage_prefix VERSION N: the source of this prefix, the tree's objects kept.
stage_prefix() {
	local version=$1 number=$2 tree stage patch_file
	tree=$(prefix_dir "$version" "$number")
	stage=$tree.stage
	seed_prefix "$version" "$number"
	rm -rf "$stage"
	mkdir -p "$stage" "$tree"
	copy_pristine "$version" "$stage"
	for patch_file in $(series_of "$version" | head -n "$number"); do
		apply_patch "$stage" "$(series_dir "$version")/$patch_file" --forward
	done
	# By content, so that make sees only what really changed.
	rsync -rlpc --delete --exclude '*.o' --exclude '*.o_binary' --exclude '.*' --exclude '*.ko' \
		--exclude '*.mod' --exclude '*.mod.c' --exclude '*.d' --exclude /conftest \
		--exclude /Module.symvers --exclude /modules.order --exclude nv_compiler.h \
		"$stage/" "$tree/" || die "cannot write $tree"
	rm -rf "$stage"
	ln -sfn "$(pristine_tree "$version")/nvidia/nv-kernel.o_binary" "$tree/nvidia/nv-kernel.o_binary"
}

# build_prefix VERSION N
build_prefix() {
	local tree
	tree=$(prefix_dir "$1" "$2")
	rm -f "$tree/nvidia.ko" "$tree/nvidia-uvm.ko"
	make -C "$tree" -j"$JOBS" modules SYSSRC="$kernel_source" SYSOUT="$kernel_output" \
		NV_EXCLUDE_KERNEL_MODULES="nvidia-drm nvidia-modeset nvidia-peermem"
	[ -e "$tree/nvidia.ko" ] && [ -e "$tree/nvidia-uvm.ko" ]
}

# instructions VERSION N: the disassembly of every object of the interface
# layer, relocations included, into N.s; not NVIDIA's prebuilt core.
instructions() {
	local tree object
	tree=$(prefix_dir "$1" "$2")
	for object in "$tree"/nvidia/*.o "$tree"/nvidia-uvm/*.o; do
		case $object in
		*/nv-kernel.o | */nv-interface.o) continue ;;
		esac
		printf '%s\n' "${object#"$tree"/}"
		objdump -dr --no-show-raw-insn -j .text -j .init.text -j .exit.text -j .text.unlikely \
			"$object" 2>/dev/null | sed 1,2d
	done >"$tree.s"
}

# same_instructions STOCK.s PREFIX.s: line by line. A number loaded into a
# register may have grown by as many lines as the series adds to a file: it is
# __LINE__, which the driver passes to its messages and allocation records.
same_instructions() {
	paste -d $'\001' "$1" "$2" | awk -F '\001' -v shift_max=40 '
		function hex(s,  i, v) {
			for (i = 1; i <= length(s); i++)
				v = v * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1
			return v
		}
		function line_number(s) {
			if (!match(s, /mov +\$0x[0-9a-f]+,%/)) return -1
			s = substr(s, RSTART, RLENGTH)
			gsub(/^.*0x|,%$/, "", s)
			return hex(s)
		}
		function frame(s) { sub(/\$0x[0-9a-f]+,/, "$N,", s); return s }
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
