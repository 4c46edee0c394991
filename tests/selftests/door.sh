#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs in the machine: every test through /dev/gctgroup, or those that the file
# `filter` names. Where the kernel has lockdown, it is switched on once the driver is
# loaded, since nobody has signed the driver.
lockdown=/sys/kernel/security/lockdown
mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
if [ -e $lockdown ]; then
	insmod /modules/nvidia.ko || exit
	echo integrity >$lockdown || exit
fi
exec gct-selftest door --module /modules/nvidia.ko $(cat /test/filter 2>/dev/null)
