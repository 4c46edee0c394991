#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine with the kernel "node": makes a tmpfs with a root file system the root of a
# mount namespace, and runs its /test.sh. A runtime of containers cannot pivot away from an
# initramfs, and nobody makes a user namespace below another root than that of the namespace.
. /test/lib.sh
load_nvidia || exit
load_uvm || exit
mkdir /rootfs
mount -t tmpfs -o size=1500m tmpfs /rootfs
tar -xf /root.tar -C /rootfs || exit
rm /root.tar
for folder in proc sys dev; do
	mkdir -p /rootfs/$folder
	mount --rbind /$folder /rootfs/$folder
done
unshare -m sh -c 'cd /rootfs && mount --move . / && exec chroot . /test.sh'
