# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Keeps the objects of NVIDIA's own files in the store. They depend on the driver,
# the patches, the kernel and the compiler, and not on our sources: a new clone
# takes them from the store, compiles our sources and links. Source this file
# after kmod-kernel.sh.
#
# An entry is a work tree without what our sources can change: gct/ itself, each
# object whose dependencies name gct/, and what is linked.

# objects_key TREE PART...: names the entry for driver tree TREE and whatever else
# decides, or prints nothing if TREE or the kernel is not the store's: their
# contents could change under the same name.
objects_key() {
	local tree
	tree=$(readlink -f "$1")
	shift
	case $tree in "$STORE"/*) ;; *) return 0 ;; esac
	case $KDIR in "$STORE"/*) ;; *) return 0 ;; esac
	content_key "$tree" "$(kernel_identity)" "$("$kernel_compiler" --version)" \
		"@$ROOT/ci/kmod-store.sh" "$@"
}

# restore_objects KEY TREE: makes TREE, which has no objects yet, a copy of the
# entry, times and all, so that make compiles only what the entry lacks.
restore_objects() {
	local entry=$STORE/nv-objects/$1 tree=$2
	[ -n "$1" ] && [ -e "$entry" ] && [ ! -e "$tree/.stage-key" ] || return 0
	touch "$entry"
	rm -rf "$tree"
	cp -a "$entry" "$tree"
}

# save_objects KEY TREE: makes the entry from a built TREE unless there is one.
# Two clones may do so at once; the second one's copy is dropped.
save_objects() {
	local entry=$STORE/nv-objects/$1 tree=$2 new dependencies object
	[ -n "$1" ] && [ ! -e "$entry" ] || return 0
	mkdir -p "$STORE/nv-objects"
	new=$(mktemp -d "$entry.XXXXXX")
	rsync -a --exclude /gct --exclude /nvidia.o --exclude /nvidia-uvm.o --exclude '*.ko' \
		--exclude '*.mod.o' --exclude 'nv-interface.o' --exclude nv-kernel.o "$tree/" "$new/"
	find "$new" -name '.*.o.cmd' | while read -r dependencies; do
		grep -qE '^ *(\./)*gct/|/nv-gct\.h' "$dependencies" || continue
		object=$(basename "$dependencies" .cmd)
		rm -f "$dependencies" "$(dirname "$dependencies")/${object#.}"
	done
	touch "$new"
	mv -T "$new" "$entry" 2>/dev/null || rm -rf "$new"
	# Twice what `make test-long` uses.
	keep_newest nv-objects 40
}
