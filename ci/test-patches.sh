#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Checks the patch series: text, exact application, reversal, that prefixes build
# and, without gctgroup's sources, compile to the instructions of the driver that is
# only ported to Linux 7.2, and what a hook costs while it is off. The first patch
# and the whole series of one version build always, the others in `make test-long`.
#
#   [NV_SRC=DIR] ci/test-patches.sh [--no-build] [VERSION...]
#
# The kernel is build/linux/lean; trees stay in build/patches/. Of the versions without a
# package the text is checked, and whether the hooks are those of the others. With NV_SRC,
# NVIDIA's source of such a version, that version is checked as the others are.

. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/patches-tree.sh"

job=patches
with_build=yes
versions=()
for argument; do
	case $argument in
	--no-build) with_build= ;;
	*) versions+=("$argument") ;;
	esac
done
if [ ${#versions[@]} -eq 0 ]; then
	mapfile -t versions < <("$ROOT/ci/series.py" versions)
fi
rm -f "$RESULTS/$job"
[ -z "${NV_SRC:-}" ] || "$ROOT/ci/setup-nvidia-source.sh"

# Returns whether no package has a version.
is_ported() {
	[[ " $NV_PORTED_VERSIONS " = *" $1 "* ]]
}

# Returns whether there is a driver to apply a series to.
has_driver() {
	[ -d "$(pristine_tree "$1")" ]
}

# Runs a check in a subshell, so that its `die` ends the check only. `set -e` is
# off inside (check tests the result), hence the explicit `die`s.
isolated() {
	("$@")
}

test_case() {
	local what=$1
	shift
	check $job "$what" isolated "$@"
}

# --- Text --------------------------------------------------------------------

lint_series() {
	local dir
	dir=$(series_dir "$1")
	series_of "$1" | sed "s,^,$dir/," | xargs "$ROOT/ci/patches-lint.sh"
}

cover_letter_lists_all() {
	local patch_file folder=$ROOT/open-gpu-kernel-modules-patches
	for patch_file in "$folder"/*.patch; do
		grep -qF "$(basename "$patch_file")" "$folder/0000-cover-letter.md" ||
			die "the cover letter does not mention $patch_file"
	done
}

base_is_the_one_patched() {
	local digest
	digest=$(cd "$(pristine_tree "$1")" && touched_files "$1" | xargs sha256sum | sha256sum | cut -d' ' -f1)
	[ "$digest" = "$(base_field "$1" touched-sha256)" ] ||
		die "the tree in build/nv/$1 is not what BASE describes (touched-sha256 $digest)"
}

# A fixture of tests/patches/bad must be refused, in the expected words.
lint_refuses() {
	local output
	! output=$("$ROOT/ci/patches-lint.sh" "$ROOT/tests/patches/bad/$1") ||
		die "accepted $1"
	grep -qF "$2" <<<"$output" || die "refused $1 for another reason: $output"
}

# Added and removed lines of a patch, without places and contexts.
bare_changes() {
	sed '1,/^---$/d' "$1" | grep '^[-+]' | grep -v '^+++ \|^--- '
}

# What a patch changes in NVIDIA's own files, without blanks at the ends of lines.
hooks_by_name() {
	local headers='common/inc/nv-gct.h common/inc/nv-gct-uvm.h nvidia-uvm/uvm_gct.h'
	awk -v headers="$headers" '
		/^diff --git / { own = index(" " headers " ", " " substr($3, 3) " "); body = 0; next }
		/^@@ / { body = 1; next }
		!body || own || !/^[-+]/ { next }
		/^[-+][[:space:]]*$/ { next }
		{ sub(/^[-+]/, "& "); $1 = $1; print }' "$1" | LC_ALL=C sort
}

# The same without the arguments and conditions of the hooks in NVIDIA's own files.
calls_by_name() {
	hooks_by_name "$1" | sed 's/\(gct_[a-z_]*(\).*/\1/'
}

# The hooks are the same in every version; only 0001, the port, may differ. Newer drivers have
# some functions of other forms, so there the bodies of the hooks may differ, too, and the
# arguments in those patches that BASE names.
hooks_are_equal() {
	local patch_file view
	for patch_file in $(series_of "$1" | tail -n +2); do
		view=bare_changes
		! is_ported "$2" || view=hooks_by_name
		[[ " $(base_field "$2" arguments) " != *" ${patch_file%%-*} "* ]] || view=calls_by_name
		diff <($view "$(series_dir "$1")/$patch_file") \
			<($view "$(series_dir "$2")/$patch_file") || die "$patch_file differs"
	done
}

# Names and numbers of the escapes in the headers of a driver. Of some drivers only a
# part of the headers is there.
escapes_of() {
	local header
	for header in "$(pristine_tree "$1")"/common/inc/nv-ioctl-num*.h \
		"$BUILD/nv/$1/src/nvidia/arch/nvalloc/unix/include/nv_escape.h"; do
		[ ! -e "$header" ] || sed -n 's/(NV_IOCTL_BASE + \([0-9]*\))/200+\1/
			s/^#define *\(NV_ESC_[A-Z0-9_]*\) *\([0-9xA-F+]*\)$/\1 \2/p' "$header"
	done | while read -r name number; do
		printf '%s 0x%x\n' "$name" $((number))
	done | LC_ALL=C sort -u
}

# Those of the table in patches.md.
escapes_listed() {
	sed -n 's/^| \(NV_ESC_[A-Z0-9_]*\) | \(0x[0-9a-f]*\) | [^ ].*/\1 \2/p' "$ROOT/gctgroup-docs/patches.md" | LC_ALL=C sort
}

# A new escape may make objects: somebody has to say how it is followed.
escapes_are_known() {
	local unknown
	[ "$(escapes_of "$1" | wc -l)" -ge 14 ] || die "the headers of $1 have hardly any escape"
	unknown=$(comm -13 <(escapes_listed) <(escapes_of "$1"))
	[ -z "$unknown" ] || die "patches.md does not say how these are followed: $unknown"
}

# A new open control may move a ring: somebody has to say what it does.
controls_have_rules() {
	local without
	[ "$("$ROOT/ci/controls.sh" "$1" | wc -l)" -ge 600 ] || die "the export tables of $1 have hardly any open control"
	without=$("$ROOT/ci/controls.sh" --without-a-rule "$1")
	[ -z "$without" ] || die "rmapi/allow.rs has no rule for: $without"
}

# What the hostile test of rm-test sends.
controls_are_listed() {
	diff "$ROOT/tests/rm-client/src/controls.txt" <("$ROOT/ci/controls.sh" --sizes "$1")
}

# Those of drivers without a package.
escapes_of_newer() {
	sed -n 's/^| \(NV_ESC_[A-Z0-9_]*\) | \(0x[0-9a-f]*\) | .*; from 5[0-9]* on |$/\1 \2/p' "$ROOT/gctgroup-docs/patches.md"
}

# What is listed is in some driver.
escapes_exist() {
	local version gone
	gone=$(comm -23 <(escapes_listed) \
		<({ for version; do escapes_of "$version"; done && escapes_of_newer; } | LC_ALL=C sort -u))
	[ -z "$gone" ] || die "patches.md lists what no driver has: $gone"
}

# Numbers of controls without the generation of a channel's, which gct.h does not compare.
without_generation() {
	sed 's/ [0-9a-f]*\(6f010[0-9a-f]\)$/ \1/' | sort
}

# The hook is for the escapes and controls of which patches.md says so.
hooked_are_listed() {
	local header=$ROOT/rust/include/gct.h docs=$ROOT/gctgroup-docs/patches.md
	diff <(sed -n 's/^#define GCT_ESCAPE_[A-Z_]* 0x\([0-9A-F]*\)u$/0x\L\1/p' "$header" | sort) \
		<(sed -n 's/^| NV_ESC_[A-Z0-9_]* | \(0x[0-9a-f]*\) | \(hooked\|takes its turn\).*/\1/p' "$docs" | sort) &&
		diff <(sed -n 's,^\tcase 0x0*\([0-9a-f]*\): /\* \(NV[A-Z0-9_]*\) \*/$,\2 \1,p' "$header" | without_generation) \
			<(sed -n 's/^| \(NV[A-Z0-9_]*_CTRL_CMD_[A-Z0-9_]*\) | 0x0*\([0-9a-f]*\) |.*/\1 \2/p' "$docs" | without_generation)
}

# --- Application -------------------------------------------------------------

# git takes the series, and what comes back from git is the same. The clone is a copy, for what
# comes back is written there.
git_returns_it() {
	local version=$1 clone=$BUILD/patches/$1/clone folder=open-gpu-kernel-modules-patches
	rm -rf "$clone"
	mkdir -p "$clone/build/nv"
	cp -r "$ROOT/ci" "$ROOT/$folder" "$clone"
	ln -s "$BUILD/nv/$version" "$clone/build/nv/$version"
	GCT_CACHE='' "$clone/ci/patches-git.sh" tree "$version" "$clone/tree" || return
	GCT_CACHE='' "$clone/ci/patches-git.sh" export "$version" "$clone/tree" || return
	diff -r "$ROOT/$folder" "$clone/$folder" || return
	rm -rf "$clone"
}

# A hunk whose old text is not in its file, or is there twice, is refused: it says which.
misfits_are_refused() {
	local version=$1 tree=$BUILD/patches/$1/misfit output change
	for change in 's/nv_linux_stop_open_q(nvl)/stop(nvl)/; s/LOCK_NV_LINUX_DEVICES();/lock();/' 'p'; do
		rm -rf "$tree"
		copy_pristine "$version" "$tree/"
		sed -i "$change" "$tree/nvidia/nv-pci.c"
		[ "$change" != p ] || cat "$(pristine_tree "$version")"/nvidia/nv-pci.c{,} >"$tree/nvidia/nv-pci.c"
		! output=$("$ROOT/ci/series.py" write "$version" "$tree.series" "$tree" 2>&1) ||
			die "accepted a driver that the hunks do not fit"
		grep "nvidia/nv-pci.c: a hunk fits in [02] places" <<<"$output" || die "it says: $output"
	done
	rm -rf "$tree" "$tree.series"
}

reversal_restores() {
	local version=$1 tree patch_file
	tree=$(mktemp -d "$BUILD/patches/reverse.XXXXXX")
	copy_pristine "$version" "$tree/now"
	cp -a "$tree/now" "$tree/before"
	for patch_file in $(series_of "$version"); do
		apply_patch "$tree/now" "$(series_dir "$version")/$patch_file" --forward
	done
	! diff -rq "$tree/before" "$tree/now" >/dev/null || die "the series changes nothing"
	for patch_file in $(series_of "$version" | tac); do
		apply_patch "$tree/now" "$(series_dir "$version")/$patch_file" --reverse
	done
	diff -r "$tree/before" "$tree/now" || die "the reversed series leaves differences"
	rm -rf "$tree"
}

prefix_is_stock() {
	local stock
	build_prefix "$1" 1
	stock=$prefix_instructions
	build_prefix "$1" "$2"
	zstd -dc "$prefix_instructions" | grep '<nvidia_open>:' >/dev/null ||
		die "nvidia_open is not in $prefix_instructions"
	same_instructions <(zstd -dc "$stock") <(zstd -dc "$prefix_instructions") ||
		die "the instructions differ from stock"
}

# --- Cost --------------------------------------------------------------------

# First of all builds: the prefixes find the objects of the stock one in the compiler cache.
build_to_compare() {
	env -u GCT_KUNIT -u KDIR -u NV_SRC NV_VERSION="$1" GCT_STOCK=1 "$ROOT/ci/kmod.sh" &&
		env -u GCT_KUNIT -u GCT_STOCK -u KDIR -u NV_SRC NV_VERSION="$1" "$ROOT/ci/kmod.sh"
}

unpatched_is_noticed() {
	local stock=$BUILD/kmod/$1/lean/stock/nvidia.ko
	! "$ROOT/ci/hook-cost.sh" "$1" "$stock" "$stock"
}

# --- Behaviour ---------------------------------------------------------------

# observe VERSION VARIANT GPUS: what tests/patches/behaviour.sh prints.
observe() {
	local log=$BUILD/patches/$1-$2-$3.log
	"$ROOT/ci/vm.sh" run --nv "$1" --variant "$2" --gpus "$3" --timeout 600 --quiet \
		--script "$ROOT/tests/patches/behaviour.sh" --log "$log" >/dev/null ||
		die "the machine with $2 and $3 GPUs failed; see $log"
	sed -n 's/^ *| //p' "$log" | grep -x 'end' >/dev/null || die "no end in $log"
	sed -n 's/^ *| //p' "$log"
}

behaves_as_stock() {
	local version=$1 gpus=$2 variant
	for variant in stock patched; do
		observe "$version" "$variant" "$gpus" >"$BUILD/patches/$version-$variant-$gpus.seen" || return
	done
	diff "$BUILD/patches/$version-stock-$gpus.seen" "$BUILD/patches/$version-patched-$gpus.seen"
}

# The software GPU has firmware for the driver with which RM starts it here.
uuid_arrives() {
	need_tools && need_firmware "$BUILD/patches/firmware" &&
		"$ROOT/ci/vm.sh" run --nv "$1" --variant patched --gpus 1 --timeout 600 --quiet \
			--file "$FIRMWARE" --script "$ROOT/tests/patches/uuid.sh"
}

# -----------------------------------------------------------------------------

mkdir -p "$BUILD/patches"
while read -r fixture words; do
	test_case "lint refuses $fixture" lint_refuses "$fixture" "$words"
done <"$ROOT/tests/patches/bad/expected"

test_case "the cover letter names every patch" cover_letter_lists_all
test_case "every escape that patches.md lists exists" escapes_exist $NV_VERSIONS
test_case "gct.h and patches.md name the same escapes and controls" hooked_are_listed
for version in "${versions[@]}"; do
	test_case "$version: each hunk fits in one place" write_series "$version"
	test_case "$version: lint" lint_series "$version"
	[ "$version" = "${versions[0]}" ] ||
		test_case "$version: hooks as in ${versions[0]}" hooks_are_equal "${versions[0]}" "$version"
	if is_ported "$version" && ! has_driver "$version"; then
		note "$version: no source of this driver is here (NV_SRC), so only its text was checked"
		continue
	fi
	has_driver "$version" || die "build/nv/$version is missing: run make setup"
	test_case "$version: patches.md says how every escape is followed" escapes_are_known "$version"
	[ ! -d "$BUILD/nv/$version/src/nvidia/generated" ] ||
		test_case "$version: every open control has a rule" controls_have_rules "$version"
	[ "$version" != "$NV_SOURCE_VERSION" ] ||
		test_case "$version: rm-test sends every open control" controls_are_listed "$version"
	test_case "$version: build/nv has the BASE" base_is_the_one_patched "$version"
	test_case "$version: a hunk that does not fit is refused" misfits_are_refused "$version"
	test_case "$version: reversal restores every byte" reversal_restores "$version"
	test_case "$version: git takes the series and gives it back" git_returns_it "$version"
	[ -z "$with_build" ] ||
		test_case "$version: the driver with and without gctgroup builds" build_to_compare "$version"
	count=$(series_of "$version" | wc -l)
	for number in $(seq "$count"); do
		test_case "$version: patches 1-$number apply exactly" stage_prefix "$version" "$number"
		[ -n "$with_build" ] || continue
		case $number:$version in
		1:"$NV_SOURCE_VERSION" | "$count":"$NV_SOURCE_VERSION") ;;
		*) long || continue ;;
		esac
		test_case "$version: patches 1-$number build" build_prefix "$version" "$number"
		[ "$number" -eq 1 ] ||
			test_case "$version: patches 1-$number without gctgroup are stock" \
				prefix_is_stock "$version" "$number"
	done
	[ -n "$with_build" ] || continue
	test_case "$version: a hook that is off is one no-op" "$ROOT/ci/hook-cost.sh" "$version"
	test_case "$version: the count notices a driver without hooks" unpatched_is_noticed "$version"
	for gpus in 0 1; do
		test_case "$version: with $gpus GPUs user space sees what it sees of stock" \
			behaves_as_stock "$version" "$gpus"
	done
	[ "$version" != "$NV_SOURCE_VERSION" ] ||
		test_case "$version: the UUID arrives when the GPU is started" uuid_arrives "$version"
done
finish $job
