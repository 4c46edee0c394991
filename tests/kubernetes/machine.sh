#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine with the kernel "node": enters the node's root file system on a tmpfs, because
# a runtime cannot pivot away from an initramfs.
. /test/lib.sh
load_nvidia || exit
load_uvm || exit
mkdir /node
mount -t tmpfs -o size=1500m tmpfs /node
tar -xf /node.tar -C /node || exit
rm /node.tar
for folder in proc sys dev; do
	mkdir -p /node/$folder
	mount --rbind /$folder /node/$folder
done
unshare -m chroot /node /bin/sh /machine-node.sh
