# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Shell helpers shared by the scripts in ci/. Source this file; do not run it.
#
#   step "what is done" command...   runs a command, prints how long it took
#   die "message"                    prints an error and exits with 1
#   store_dir KIND KEY               where content-keyed results live
#   content_key text-or-@file...     a short hash over the arguments
#   record JOB PASSED FAILED         adds to the counts `make test` sums up
#   long                             whether `make test-long` runs
#   without_long                     prints the filter that leaves out what it alone runs

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
BUILD=$ROOT/build
# With LINUX_SERIES all scripts work on that series of Linux, in a folder of its own.
[ -z "${LINUX_SERIES:-}" ] || BUILD=$ROOT/build/linux-$LINUX_SERIES
RESULTS=$BUILD/results
JOBS=${JOBS:-$(nproc)}

# The store holds everything that costs minutes: downloads, kernel trees,
# NVIDIA's trees, bindgen. Its entries are named by a hash of all their inputs,
# so it may be shared by several clones and deleted at any time. An empty
# GCT_CACHE keeps it inside the clone.
GCT_CACHE=${GCT_CACHE-${XDG_CACHE_HOME:-$HOME/.cache}/gctgroup}
STORE=${GCT_CACHE:-$ROOT/build/store}
mkdir -p "$BUILD" "$STORE" "$RESULTS"
STORE=$(cd "$STORE" && pwd -P)

# Returns whether every variant is to run, not only the tests that gate a commit.
long() {
	[ -n "${GCT_LONG:-}" ]
}

# without_long FILE: prints the filter that leaves out the tests named in FILE, a name or a part of
# one in a line; nothing for `make test-long`.
without_long() {
	long || printf '!%s' "$(grep -v '^#' "$1" | grep . | paste -sd,)"
}

# Returns whether this machine lets the job kubernetes make what it needs: namespaces,
# and a cgroup in each hierarchy.
can_run_kubernetes() {
	local at
	[ "$(id -u)" -eq 0 ] || return
	unshare -m -p -n -u -i -f --propagation private true 2>/dev/null || return
	for at in $(findmnt -rn -t cgroup,cgroup2 -o TARGET || echo /nowhere); do
		mkdir "$at/gct-probe-$$" 2>/dev/null && rmdir "$at/gct-probe-$$" || return
	done
}

die() {
	printf 'error: %s\n' "$*" >&2
	exit 1
}

note() {
	printf '    %s\n' "$*"
}

# Runs a command with its output in a log file, shows the log only when the
# command fails. The log's name is made from the description.
step() {
	local what=$1 log start rc=0
	shift
	mkdir -p "$BUILD/log"
	log=$BUILD/log/$(printf '%s' "$what" | tr -c 'A-Za-z0-9._\n' '-').log
	printf '==> %s\n' "$what"
	start=$SECONDS
	# A subshell, so that `die` in a function ends the step and not the script.
	# It is not in a condition: that would switch `set -e` off inside it.
	set +e
	(set -e; "$@") >"$log" 2>&1
	rc=$?
	set -e
	if [ $rc -ne 0 ]; then
		tail -n 40 "$log" >&2
		printf 'error: "%s" failed after %d s (exit status %d); whole log: %s\n' \
			"$what" $((SECONDS - start)) $rc "$log" >&2
		exit $rc
	fi
	note "done in $((SECONDS - start)) s"
}

# Hashes its arguments; an argument "@FILE" stands for the contents of FILE.
content_key() {
	local part
	for part; do
		case $part in
		@*) sha256sum <"${part#@}" ;;
		*) printf '%s\n' "$part" ;;
		esac
	done | sha256sum | cut -c1-16
}

store_dir() {
	printf '%s/%s/%s' "$STORE" "$1" "$2"
}

# keep_newest KIND COUNT: deletes the store's entries of KIND but for the COUNT that were
# used last. Who uses an entry touches it.
keep_newest() {
	local entry
	[ -d "$STORE/$1" ] || return 0
	find "$STORE/$1" -mindepth 1 -maxdepth 1 -type d -printf '%T@ %p\n' |
		sort -rn | tail -n +$(($2 + 1)) | cut -d' ' -f2- | while read -r entry; do
		rm -rf "$entry"
	done
}

# need_space GIB WHAT: ends with an error unless the clone's disk has GIB GiB free.
need_space() {
	local free
	free=$(df --output=avail -k "$BUILD" | tail -n 1)
	[ "$free" -ge $(($1 * 1024 * 1024)) ] ||
		die "$2 needs $1 GiB of free disk; $BUILD has $((free / 1024 / 1024))"
}

# driver_version KERNEL_OPEN: the version of NVIDIA's tree, or nothing.
driver_version() {
	sed -n 's/.*NV_VERSION_STRING=\\"\([0-9.]*\)\\".*/\1/p' "$1/Kbuild"
}

# Makes LINK a symbolic link to TARGET, atomically.
link_to() {
	local target=$1 link=$2
	mkdir -p "$(dirname "$link")"
	if [ -e "$link" ] && [ ! -L "$link" ]; then
		die "$link exists and is not a link: move it away"
	fi
	ln -sfn "$target" "$link.new.$$"
	mv -T "$link.new.$$" "$link"
}

# build_once KIND KEY DESCRIPTION FUNCTION [ARGS...]
#
# Runs FUNCTION DIR [ARGS...] unless DIR, the store's place for KIND and KEY,
# is complete already. A lock makes two clones wait for each other instead of
# writing the same tree. FUNCTION must be able to resume after an interruption.
# The directory's path is left in the variable built.
build_once() {
	local kind=$1 key=$2 what=$3
	shift 3
	built=$(store_dir "$kind" "$key")
	mkdir -p "$built"
	exec {store_lock}>"$built.lock"
	flock "$store_lock"
	if [ -e "$built/.complete" ]; then
		printf '==> %s\n' "$what"
		note "already there ($built)"
	else
		local function=$1
		shift
		step "$what" "$function" "$built" "$@"
		touch "$built/.complete"
	fi
	exec {store_lock}>&-
}

# All cargo builds of the scripts share one directory.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/build/cargo}
GUEST_TARGET=x86_64-unknown-linux-gnu
GUEST_BIN=$CARGO_TARGET_DIR/$GUEST_TARGET/release

# need_rust TOOL...: ends with an error unless these tools of Rust are there. After versions.sh.
need_rust() {
	local tool
	for tool; do
		command -v "$tool" >/dev/null || die "$tool is missing. Install rustup (https://rustup.rs), then:" \
			"rustup toolchain install $RUST_TESTED --component clippy,rustfmt"
	done
}

# need_tools: builds the VM runner and the software GPU; sets GCT_VM. The software GPU is one for
# NV_SOURCE_VERSION, whatever tree NV_SRC names for the modules.
need_tools() {
	GCT_VM=$CARGO_TARGET_DIR/release/gct-vm
	step "VM runner and software GPU" env NV_SRC= cargo build --release --locked \
		--manifest-path "$ROOT/userspace/Cargo.toml" -p gct-vm -p fakegpu
}

# need_source VERSION: makes build/nv/VERSION of the tree that NV_SRC names, if this driver has no
# package. From then on the scripts use that copy.
need_source() {
	[[ " $NV_PORTED_VERSIONS " = *" $1 "* ]] && [ -n "${NV_SRC:-}" ] || return 0
	local found
	found=$(driver_version "$NV_SRC/kernel-open")
	[ "$found" = "$1" ] || die "NV_SRC=$NV_SRC is version ${found:-unknown}, not $1"
	"$ROOT/ci/setup-nvidia-source.sh"
	export NV_SRC=
}

# need_driver: sets VERSION to the driver that NV_VERSION names, if the software GPU knows it, else
# to NV_SOURCE_VERSION, and has its source. NV_VERSION=580.142 NV_SRC=DIR chooses that driver;
# without NV_SRC, its copy in build/nv. After versions.sh.
need_driver() {
	VERSION=$(software_gpu_version "${NV_VERSION:-}")
	[ -z "${NV_SRC:-}" ] || [ "$VERSION" = "${NV_VERSION:-$VERSION}" ] ||
		die "the software GPU does not know driver $NV_VERSION"
	need_source "$VERSION"
}

# need_software_gpu VERSION DIR: has a software GPU for a driver, and writes the firmware that the
# driver loads into it; sets SOFTWARE_GPU, arguments of the VM runner. One for another driver than
# NV_SOURCE_VERSION is built with the driver's headers. DIR is the job's own, for another job may
# run. After need_tools.
need_software_gpu() {
	local version=$1 target=$CARGO_TARGET_DIR
	SOFTWARE_GPU=()
	if [ "$version" != "$NV_SOURCE_VERSION" ]; then
		target=$CARGO_TARGET_DIR/driver-$version
		[ -d "$BUILD/nv/$version/src/nvidia/generated" ] || die "the software GPU for $version needs" \
			"NVIDIA's whole source: NV_SRC=DIR"
		step "software GPU for $version" env NV_SRC="$BUILD/nv/$version" cargo build --release --locked \
			--target-dir "$target" --manifest-path "$ROOT/userspace/Cargo.toml" -p fakegpu
		SOFTWARE_GPU=(--fakegpu "$target/release/fakegpu")
	fi
	local file=nvidia/$version/gsp_ga10x.bin
	step "firmware of the software GPU" "$target/release/fakegpu-firmware" "$2"
	[ -e "$2/$file" ] || die "the software GPU does not know driver $version"
	FIRMWARE=$2/$file:/lib/firmware/$file
}

# need_guest_programs PACKAGE...: builds programs for the machine, which has no
# libraries, into $GUEST_BIN. With an explicit target the flags do not reach
# build scripts.
need_guest_programs() {
	local packages=("${@/#/-p}")
	RUSTFLAGS='-C target-feature=+crt-static' step "guest programs: $*" \
		cargo build --release --locked --target "$GUEST_TARGET" \
		--manifest-path "$ROOT/userspace/Cargo.toml" "${packages[@]}"
}

# need_programs DIR: builds the programs of the user-space mode, and the examples with which tests
# play others, into DIR. The job host compiles the same selection of packages: for another one cargo
# would unite other features, and compile most crates again.
need_programs() {
	local built=$CARGO_TARGET_DIR/debug
	step "programs of the user-space mode" cargo build --locked \
		--manifest-path "$ROOT/userspace/Cargo.toml" --workspace --bins --lib --examples
	mkdir -p "$1"
	install --strip "$built"/{gctd,gctctl,gct-device-plugin,gct-exporter,libgct_preload.so} \
		"$built"/examples/{tenant,mps-control} "$1"
}

# need_firmware DIR: need_software_gpu for NV_SOURCE_VERSION; sets FIRMWARE, a --file of the VM
# runner.
need_firmware() {
	need_software_gpu "$NV_SOURCE_VERSION" "$1"
}

# Adds the counts of one test job; `make test` prints their sum.
record() {
	mkdir -p "$RESULTS"
	printf '%d %d\n' "$2" "$3" >>"$RESULTS/$1"
}

# check JOB DESCRIPTION command...: one test of a shell job, counted and shown.
check() {
	local job=$1 what=$2
	shift 2
	local log start=$SECONDS
	mkdir -p "$BUILD/log"
	log=$(mktemp "$BUILD/log/$job.XXXXXX")
	if "$@" >"$log" 2>&1; then
		printf 'ok      %s (%d s)\n' "$what" $((SECONDS - start))
		record "$job" 1 0
		rm -f "$log"
	else
		printf 'FAILED  %s\n' "$what"
		sed 's/^/        /' "$log" | tail -n 60
		record "$job" 0 1
	fi
}

# check_script JOB LOG command...: runs a command that prints a line for each test, "ok WHAT" or
# "FAILED WHAT". Counts and shows these lines. A command that ends early has failed.
check_script() {
	local job=$1 log=$2 word what
	shift 2
	"$@" >"$log" 2>&1 || echo "FAILED the script ended early" >>"$log"
	while read -r word what; do
		case $word in
		ok) record "$job" 1 0 ;;
		FAILED) record "$job" 0 1 ;;
		*) continue ;;
		esac
		printf '%-7s %s\n' "$word" "$what"
	done <"$log"
	! grep -q '^FAILED' "$log" || note "whole log: $log"
}

# Exits with 1 if the job has recorded a failure or nothing at all.
finish() {
	local job=$1 passed=0 failed=0 p f
	if [ -e "$RESULTS/$job" ]; then
		while read -r p f; do
			passed=$((passed + p)) failed=$((failed + f))
		done <"$RESULTS/$job"
	fi
	printf '%s: %d passed, %d failed\n' "$job" $passed $failed
	[ $failed -eq 0 ] && [ $passed -gt 0 ]
}
