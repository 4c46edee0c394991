#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine with the kernel "node": enters a root file system on a tmpfs, because a
# runtime of containers cannot pivot away from an initramfs. Runs its /test.sh.
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
unshare -m chroot /rootfs /test.sh
