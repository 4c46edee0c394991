#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What ci/setup-sources.sh takes from an archive that changes under it, and what the
# store keeps of cargo's. The archive, apt and rustc are stand-ins: a file lists the
# packages that there are.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

job=setup
rm -f "$RESULTS/$job"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin"

# apt-cache madison lists what the archive has; apt-get download and source fetch it
# unless it is marked as gone.
cat >"$scratch/bin/apt-cache" <<'SCRIPT'
#!/bin/bash
awk -v name="${*: -1}" '$1 == name { print $1 " | " $2 " | http://archive Packages" }' "$ARCHIVE"
SCRIPT
cat >"$scratch/bin/apt-get" <<'SCRIPT'
#!/bin/bash
wanted=${*: -1}
case " $* " in
*" indextargets "*) echo "Packages bookworm main http://archive" ;;
*" update "*) [ ! -e "$ARCHIVE.down" ] ;;
*" download "*) grep -qxF "${wanted%%=*} ${wanted#*=}" "$ARCHIVE" && touch "${wanted%%=*}_${wanted#*=}_all.deb" ;;
*" source "*) touch "${wanted%%=*}_$(sed 's/.*=//; s/-1$//' <<<"$wanted").orig.tar.xz" ;;
esac
SCRIPT
cat >"$scratch/bin/rustc" <<'SCRIPT'
#!/bin/bash
[ "$1" = --version ] && echo "rustc ${RUSTC:-1.95.0} (a stand-in)" || echo "$ARCHIVE.sysroot"
SCRIPT
chmod +x "$scratch"/bin/*

number=0
# archive LINE...: a new clone with an empty store, and an archive with these packages
# besides those that every test needs. "package version gone" is in the index only.
archive() {
	number=$((number + 1))
	clone=$scratch/$number/clone store=$scratch/$number/store
	export ARCHIVE=$scratch/$number/archive
	mkdir -p "$clone" "$store/debs"
	cp -r "$ROOT/ci" "$clone"
	printf '%s\n' "rust-src $RUST_TESTED+dfsg1-2" "nvidia-open-kernel-source $NV_DEBIAN_VERSION-4" "$@" >"$ARCHIVE"
}

fetch() {
	PATH=$scratch/bin:$PATH GCT_CACHE=$store "$clone/ci/setup-sources.sh"
}

# takes PACKAGE FILE-PREFIX [BUILD]: the setup succeeds and has this file.
takes() {
	fetch && basename "$(readlink "$clone/${3:-build}/debs/$1.deb")" | grep "^$2"
}

# fails WORDS...: the setup fails and says each of these.
fails() {
	local output words
	! output=$(fetch 2>&1) || return
	printf '%s\n' "$output"
	for words; do
		grep -qF -e "$words" <<<"$output" || return
	done
}

# make_unit PACKAGE HASH: what cargo leaves of a compiled crate, as far as its names go.
make_unit() {
	mkdir -p "$CARGO_TARGET_DIR/debug/.fingerprint/$1-$2" "$CARGO_TARGET_DIR/debug/deps"
	touch "$CARGO_TARGET_DIR/debug/.fingerprint/$1-$2/lib-$1" "$CARGO_TARGET_DIR/debug/deps/lib${1//-/_}-$2.rlib"
}

# Cargo tells by the time of a file whether a crate of the clone has changed, and another
# clone's files may be older than what was compiled here.
store_keeps_no_crate_of_ours() (
	STORE=$scratch/crates CARGO_TARGET_DIR=$scratch/cargo
	. "$ROOT/ci/cargo-store.sh"
	make_unit serde 0123456789abcdef
	make_unit gct-core fedcba9876543210
	save_crates
	CARGO_TARGET_DIR=$scratch/cargo-of-a-clone
	restore_crates
	diff <(cd "$CARGO_TARGET_DIR" && find . -type f | sort) - <<-FILES
		./debug/.fingerprint/serde-0123456789abcdef/lib-serde
		./debug/deps/libserde-0123456789abcdef.rlib
	FILES
)

# An entry that a clone has just used outlives one that was made after it.
store_keeps_what_was_used_last() (
	STORE=$scratch/entries
	mkdir -p "$STORE"/cargo/{a,b,c}
	touch -d '3 hours ago' "$STORE/cargo/b"
	touch -d '2 hours ago' "$STORE/cargo/c"
	keep_newest cargo 2
	ls "$STORE/cargo" | diff - <(printf 'a\nc\n')
	keep_newest no-such-kind 1
)

full_disk_is_an_error() {
	local output
	! output=$( (need_space 1000000 "a test") 2>&1) || return
	grep -qF "a test needs 1000000 GiB of free disk" <<<"$output"
	(need_space 0 "a test")
}

first=${LINUX_SUPPORTED%% *}
last=${LINUX_SUPPORTED##* }
[ "$first" != "$last" ] || die "there is one supported series only"
unset LINUX_SERIES

archive "linux-source-$first $first.12-1" "linux-source-$last $last.4-1"
check $job "of two series the first is taken" takes "linux-source-$first" "linux-source-${first}_$first.12"
archive "linux-source-$last $last.4-1"
check $job "the next one when the first is gone" takes "linux-source-$last" "linux-source-${last}_$last.4"
archive "linux-source-$last $last.4-1"
touch "$store/debs/linux-source-${first}_$first.11-1.deb"
check $job "an earlier download of the first" takes "linux-source-$first" "linux-source-${first}_$first.11"
archive "linux-source-$first $first.13-1 gone" "linux-source-$first $first.12-1"
check $job "an older version when the newest cannot be downloaded" \
	takes "linux-source-$first" "linux-source-${first}_$first.12"
archive "linux-source-$first $first.12-1" "linux-source-$last $last.4-1"
LINUX_SERIES=$last check $job "the series that was asked for" \
	takes "linux-source-$last" "linux-source-${last}_" "build/linux-$last"
LINUX_SERIES=6.18 check $job "a series that is not supported" fails "not supported; supported: $LINUX_SUPPORTED"
archive
check $job "no kernel at all: all that were tried are named" \
	fails "linux-source-$first: Debian has none" "linux-source-$last: Debian has none"
touch "$ARCHIVE.down"
check $job "indexes that cannot be read" fails "could not be read" "apt-update.log"

archive "linux-source-$first $first.12-1" "nvidia-open-kernel-source $NV_DEBIAN_VERSION-5"
sed -i "/$NV_DEBIAN_VERSION-4/d" "$ARCHIVE"
check $job "another revision of the driver's package" \
	takes nvidia-open-kernel-source "nvidia-open-kernel-source_$NV_DEBIAN_VERSION-5"
archive "linux-source-$first $first.12-1" "rust-src 1.96.1+dfsg1-2"
RUSTC=1.96.1 check $job "the library of another rustc" takes rust-src rust-src_1.96.1
RUSTC=1.99.0 check $job "a rustc whose library Debian lacks" \
	fails "rust-src: Debian has 1.96.1+dfsg1-2 $RUST_TESTED+dfsg1-2" "rustup component add rust-src"
archive "linux-source-$first $first.12-1"
mkdir -p "$ARCHIVE.sysroot/lib/rustlib/src/rust/library/core/src"
touch "$ARCHIVE.sysroot/lib/rustlib/src/rust/library/core/src/lib.rs"
RUSTC=1.99.0 check $job "a rustc whose library rustup has" takes "linux-source-$first" linux-source
check $job "the store keeps crates of the registry alone" store_keeps_no_crate_of_ours
check $job "the store drops what was used longest ago" store_keeps_what_was_used_last
check $job "a full disk is an error at once" full_disk_is_an_error
finish $job
