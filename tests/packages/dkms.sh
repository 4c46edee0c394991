# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# gctgroup-dkms is installed, says why it cannot build, is chosen, upgraded and removed. The kernels
# and drivers here are only as much of them as the checks look at.

files >/tmp/before
release=$(cat /gct/kernel/include/config/kernel.release)
rustc_text=$(sed -n 's/^CONFIG_RUSTC_VERSION_TEXT="\(.*\)"/\1/p' /gct/kernel/.config)

# kernel [SED-SCRIPT]: the headers of the kernel, changed.
kernel() {
	local tree=/lib/modules/$release/build
	rm -rf "$tree"
	mkdir -p "$tree"
	cp -r /gct/kernel/. "$tree"
	sed -i "${1:-}" "$tree/.config"
}

# driver VERSION [LICENCE [NAME]]: NVIDIA's source as an installer leaves it: what is in
# kernel-open, with the compiled resource manager. From 570 on its Kbuild sets ccflags-y.
driver() {
	local dir=/usr/src/${3:-nvidia-$1} flags=EXTRA_CFLAGS
	mkdir -p "$dir/nvidia"
	touch "$dir/conftest.sh" "$dir/nvidia/nv-kernel.o_binary"
	[ "${1%%.*}" -lt 570 ] || flags=ccflags-y
	printf '%s += -DNV_VERSION_STRING=\\"%s\\"\n' $flags "$1" >"$dir/Kbuild"
	printf 'MODULE_LICENSE("%s");\n' "${2:-Dual MIT/GPL}" >"$dir/nvidia/nv.c"
}

compiler() {
	printf '#!/bin/sh\necho "%s"\n' "$1" >/usr/local/bin/rustc
	chmod +x /usr/local/bin/rustc
}

check() { gctgroup-dkms check "$release"; }

try "gctgroup-dkms installs without a kernel and without a driver" install_deb /gct/old/gctgroup-dkms_*.deb
try "no headers" refuses "install linux-headers-$release" check
kernel
try "no driver" refuses "install it, such as nvidia-open-kernel-dkms" check
driver 550.163.01 NVIDIA
try "the closed driver's source is none" refuses "there is no source of NVIDIA's open kernel modules" check
rm -r /usr/src/nvidia-*
driver 999.1
try "a driver without patches" refuses "there are patches for 535.261.03 550.163.01 570.211.01 580.142 595.45.04, and none for 999.1" check
driver 550.163.01
try "no rustc" refuses "there is no rustc" check
compiler "rustc 1.85.1"
try "another rustc" refuses 'this is "rustc 1.85.1"' check
compiler "$rustc_text"
kernel '/^CONFIG_RUST=/d'
try "a kernel without Rust" refuses "CONFIG_RUST is off" check
try "what else works is said" refuses "use the user-space mode: gctd(8)" check
kernel
rm "/lib/modules/$release/build/rust/libcore.rmeta"
try "headers without Rust metadata" refuses "rust/libcore.rmeta is missing" check
skipped() { dkms autoinstall -k "$release" && [ -z "$(dkms status gctgroup | grep "$release")" ]; }
try "dkms leaves such a kernel out and goes on" skipped
kernel
try "a kernel and a driver that fit" says "Linux $release can take the driver with gctgroup" check
try "both drivers are found, and the one with patches is taken" says "driver: 550.163.01" check
driver 580.142
try "NVIDIA's own source of 580 is taken before an older driver's" \
	says "driver: 580.142 in /usr/src/nvidia-580.142" check
rm -r /usr/src/nvidia-580.142
driver 570.211.01 'Dual MIT/GPL' nvidia-open-570.211.01
try "under the name that other distributions give it, too" \
	says "driver: 570.211.01 in /usr/src/nvidia-open-570.211.01" check
rm -r /usr/src/nvidia-open-570.211.01
chosen() {
	echo 'NV_SRC=/usr/src/nvidia-999.1' >/etc/default/gctgroup-dkms
	refuses "none for 999.1" check
}
try "an administrator names the source" chosen
rm -f /etc/default/gctgroup-dkms

variable=/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
mkdir -p "${variable%/*}"
printf '\6\0\0\0\0' >$variable
try "Secure Boot that is off" says "can take the driver" check
printf '\6\0\0\0\1' >$variable
rm -f /var/lib/dkms/mok.pub
try "Secure Boot without a key" refuses "dkms has no key" check
touch /var/lib/dkms/mok.pub
mokutil() { printf '#!/bin/sh\necho "$3 %s"\n' "$1" >/usr/local/bin/mokutil && chmod +x /usr/local/bin/mokutil; }
mokutil 'is not enrolled'
try "Secure Boot with a key that is not enrolled" refuses "is not enrolled: the kernel refuses" check
mokutil 'is already enrolled'
try "Secure Boot with an enrolled key" says "can take the driver" check
rm -rf /sys/firmware /usr/local/bin/mokutil /var/lib/dkms/mok.pub

# As Debian redirects modprobe to its own names.
depmod "$release"
echo 'install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS' >/etc/modprobe.d/nvidia.conf
loads() { modprobe -S "$release" --show-depends "$1"; }
mkdir -p "/lib/modules/$release/updates/dkms"
try "until it is chosen the stock driver is loaded" says "-i nvidia-current-open" loads nvidia
try "enable" gctgroup-dkms enable
try "then this one" says "gctgroup-dkms modprobe nvidia " loads nvidia
try "and its nvidia-uvm, after it" says "modprobe nvidia && /usr/sbin/gctgroup-dkms modprobe nvidia-uvm" loads nvidia-uvm
rm /etc/modprobe.d/nvidia.conf

rm -r /lib/modules
upgrades() {
	local version
	version=$(dpkg-deb -f /gct/new/gctgroup-dkms_*.deb Version)
	install_deb /gct/new/gctgroup-dkms_*.deb
	[ "$(ls /usr/src | grep ^gctgroup)" = "gctgroup-${version%-*}" ] && [ -e /etc/modprobe.d/00-gctgroup.conf ] &&
		dkms status gctgroup | grep -F "${version%-*}" && ! dkms status gctgroup | grep -F 0.0.9
}
try "it upgrades, and stays chosen" upgrades
rm -rf /usr/local/bin/rustc /usr/src/nvidia-*
removes() {
	dpkg --purge gctgroup-dkms
	files >/tmp/after
	diff /tmp/before /tmp/after
}
try "purging it leaves no file" removes
