# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# An older system, Debian 11, with glibc 2.31. The package cannot be installed; the preload library
# works, as in a container.

try "the package says that it needs a newer glibc" refuses 'libc6 (>= 2.3' install_deb /gct/new/gctgroup-tools_*.deb

library=/usr/lib/gctgroup/libgct_preload.so
unpack() { dpkg-deb --fsys-tarfile /gct/new/gctgroup-tools_*.deb | tar -C / -x ".$library"; }
try "the library is unpacked beside an older glibc" unpack

starts() {
	local said
	said=$(LD_PRELOAD=$library "$@" 2>&1) && [ -z "$said" ] || { printf '%s\n' "$said"; return 1; }
}
try "the older loader starts programs with it" starts grep -q $library /proc/self/maps
try "and theirs" starts sh -c "grep -q $library /proc/self/maps"
