# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# dkms builds the driver with gctgroup for a real kernel, whose tree, source, driver and compiler
# are mounted at the places where they were built; /gct/places names them.

mapfile -t places </gct/places
lean=${places[0]} driver=${places[1]} sysroot=${places[2]}
release=$(cat "$lean/include/config/kernel.release")
mkdir -p "/lib/modules/$release"
ln -s "$lean" "/lib/modules/$release/build"
touch "/lib/modules/$release/modules.order" "/lib/modules/$release/modules.builtin"
version=$(sed -n 's/.*NV_VERSION_STRING=\\"\([0-9.]*\)\\".*/\1/p' "$driver/kernel-open/Kbuild")
ln -s "$driver/kernel-open" "/usr/src/nvidia-$version"
echo "RUSTC=$sysroot/bin/rustc" >/etc/default/gctgroup-dkms

try "installing gctgroup-dkms builds the driver" install_deb /gct/new/gctgroup-dkms_*.deb
is_installed() {
	cat /var/lib/dkms/gctgroup/*/build/make.log /var/lib/dkms/gctgroup/*/*/*/log/make.log 2>/dev/null | tail -n 30
	dkms status gctgroup | grep "$release.*installed"
}
try "dkms says that it is installed" is_installed
folder=/lib/modules/$release/updates/dkms
has_hooks() { grep -q gct_gpu_add "$folder/nvidia-gctgroup.ko" && [ -e "$folder/nvidia-gctgroup-uvm.ko" ]; }
try "gctgroup is in the modules" has_hooks
is_of_version() { [ "$(modinfo -k "$release" -F version nvidia-gctgroup)" = "$version" ]; }
try "modprobe finds them, of the driver's version" is_of_version
removes() { apt-get remove -y gctgroup-dkms && [ ! -e "$folder/nvidia-gctgroup.ko" ]; }
try "removing the package removes them" removes
