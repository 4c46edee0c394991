# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What ci/kmod.sh must know about the kernel in KDIR, and what it must refuse.
# Source this file with KDIR set; it sets kernel_source, kernel_toolchain and
# kernel_compiler. RUSTC may name a rustc. packaging/dkms/gctgroup-dkms sources it, too.

[ -d "$KDIR" ] || die "KDIR=$KDIR is no directory; run make setup, or give the build tree of your kernel"
given_kdir=$KDIR
KDIR=$(cd "$KDIR" && pwd -P)

kernel_config() {
	sed -n "s/^CONFIG_$1=//p" "$KDIR/.config" | tail -n 1 | tr -d '"'
}

for file in .config Makefile include/generated/autoconf.h Module.symvers; do
	[ -e "$KDIR/$file" ] ||
		die "KDIR=$KDIR has no $file: it is not the tree of a configured and built kernel"
done

# An out-of-tree build keeps a link to its source.
kernel_source=$KDIR
[ ! -e "$KDIR/source/Makefile" ] || kernel_source=$(cd "$KDIR/source" && pwd -P)

kernel_release=$(cat "$KDIR/include/config/kernel.release" 2>/dev/null || echo unknown)

# Modules are compiled by what compiled the kernel.
kernel_toolchain=()
kernel_compiler=gcc
if [ "$(kernel_config CC_IS_CLANG)" = y ]; then
	clang_version=$(kernel_config CLANG_VERSION)
	clang_major=$((clang_version / 10000))
	command -v "clang-$clang_major" >/dev/null ||
		die "the kernel in $KDIR was built by clang $clang_major: apt-get install clang-$clang_major lld-$clang_major llvm-$clang_major"
	# NVIDIA's makefiles pass CC and LD on; the kernel's derive the rest.
	kernel_compiler=clang-$clang_major
	kernel_toolchain=("LLVM=-$clang_major" "CC=clang-$clang_major" "LD=ld.lld-$clang_major")
fi

# What else can be done without Rust.
without_rust=${without_rust-, or use GCT_STOCK=1 for the driver without gctgroup}

# The name of the kernel in paths.
kernel_name() {
	case $KDIR in
	"$(readlink -f "$BUILD/linux/lean")") echo lean ;;
	"$(readlink -f "$BUILD/linux/debug")") echo debug ;;
	"$(readlink -f "$BUILD/linux/node")") echo node ;;
	"$(readlink -f "$BUILD/linux/lockdown")") echo lockdown ;;
	*) echo "$kernel_release" ;;
	esac
}

# What the answers of NVIDIA's conftest depend on.
kernel_identity() {
	content_key "$KDIR" "$kernel_release" "@$KDIR/include/generated/autoconf.h" \
		"@$KDIR/Module.symvers" "$(kernel_config CC_VERSION_TEXT)"
}

# Only kernels that the store holds are safe to remember things about elsewhere.
kernel_store() {
	case $KDIR in
	"$STORE"/*) echo "$STORE" ;;
	*) echo "$BUILD/work" ;;
	esac
}

need_option() {
	[ "$(kernel_config "$1")" = y ] || problems+=("CONFIG_$1 is off: $2")
}

# check_kernel VARIANT: dies with all that is wrong with the kernel at once.
check_kernel() {
	local problems=() text found
	need_option MODULES "the kernel loads no modules"
	need_option PCI "NVIDIA's driver needs PCI"
	need_option MMU_NOTIFIER "nvidia-uvm.ko needs it; options like KVM or HMM_MIRROR select it"
	if [ "$1" != stock ]; then
		if [ "$(kernel_config RUST)" != y ]; then
			problems+=("CONFIG_RUST is off: gctgroup is written in Rust and needs the kernel's own Rust library. Rebuild the kernel with CONFIG_RUST=y (\`make rustavailable\` in its source says what the compiler lacks)$without_rust")
		else
			for file in libcore.rmeta libkernel.rmeta; do
				[ -e "$KDIR/rust/$file" ] ||
					problems+=("rust/$file is missing though CONFIG_RUST=y: this is a package of headers without Rust metadata, or the kernel was not built here. Give the tree in which the kernel was built")
			done
			text=$(kernel_config RUSTC_VERSION_TEXT)
			found=$("${RUSTC:-rustc}" --version)
			[ "$text" = "$found" ] ||
				problems+=("the kernel was built by \"$text\", this is \"$found\": Rust objects of different compilers do not link. Install that toolchain (rustup toolchain install), or rebuild the kernel with this one")
		fi
		need_option DEBUG_FS "gctgroup's files live in debugfs"
		need_option TRACEPOINTS "gctgroup follows processes by sched_process_fork and sched_process_exit; FTRACE=y with ENABLE_DEFAULT_TRACERS=y selects it"
		need_option CGROUPS "members of a group may be named by cgroup"
	fi
	[ ${#problems[@]} -eq 0 ] && return 0
	{
		printf 'error: the kernel in KDIR=%s (%s) cannot take this driver:\n' "$given_kdir" "$kernel_release"
		printf '  - %s\n' "${problems[@]}"
	} >&2
	exit 1
}
