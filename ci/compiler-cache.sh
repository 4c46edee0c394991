# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Keeps compiled C in the store, by ccache. An object is found by what the
# preprocessor makes of its source, so each clone, variant of the modules and
# prefix of a series compiles only what no other has compiled. Source this file
# after kmod-kernel.sh.
#
#   with_compiler_cache COMMAND...   runs a command whose compilers are ccache

with_compiler_cache() (
	compilers=$BUILD/ccache
	if command -v ccache >/dev/null; then
		for compiler in cc "$kernel_compiler"; do
			link_to "$(command -v ccache)" "$compilers/$compiler"
		done
		PATH=$compilers:$PATH
		# Commands name files of a tree relative to it. What debuggers are told of it may be
		# another tree of the same source.
		export CCACHE_DIR=$STORE/ccache CCACHE_MAXSIZE=3G CCACHE_NOHASHDIR=1
	fi
	"$@"
)
