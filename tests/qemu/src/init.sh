#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The first process of the test machine. The kernel's messages go to ttyS0, this script's and the
# test's to ttyS1, so that neither interrupts the other's lines. In an interactive machine all go to
# ttyS0.

export PATH=/bin:/sbin:/test HOME=/ TERM=linux
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t debugfs debugfs /sys/kernel/debug
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
ln -sf /proc/self/fd /dev/fd
ulimit -c 0

grep -q 'gct\.interactive' /proc/cmdline && interactive=yes || interactive=
if [ -z "$interactive" ]; then
	exec </dev/null >/dev/ttyS1 2>&1
fi

# kmemleak scans at the end; its periodic scans would only slow the test down.
leaks=/sys/kernel/debug/kmemleak
[ ! -e $leaks ] || echo scan=off >$leaks

status=0
if [ -e /test/script ]; then
	(cd /test && exec sh /test/script) </dev/null
	status=$?
fi

if [ -n "$interactive" ]; then
	echo 'Type "exit" or press Ctrl-A X to leave.'
	setsid cttyhack sh
fi

# Unload the modules before the end: only then are their leaks found.
for module in nvidia_uvm nvidia; do
	if [ -e /sys/module/$module ] && ! rmmod $module; then
		echo "gct-vm: cannot unload $module"
		status=1
	fi
done

# kmemleak reports objects that two scans found unreferenced and unchanged. It skips objects younger
# than five seconds.
if [ -e $leaks ] && [ -z "$interactive" ]; then
	echo scan >$leaks
	sleep 5
	echo scan >$leaks
	cat $leaks >/tmp/leaks
	if [ -s /tmp/leaks ]; then
		echo "gct-vm: kmemleak reports $(grep -c '^unreferenced object' /tmp/leaks) leaks"
		cat /tmp/leaks
		status=1
	else
		echo "gct-vm: kmemleak reports no leak"
	fi
fi

# Under load the kernel's console loses characters: it polls the emulated port and gives up.
# Programs' output is driven by interrupts and loses none.
echo "gct-vm: kernel log"
[ -n "$interactive" ] || dmesg
echo "gct-vm: exit $status"
sync
# The serial port must drain before power-off.
sleep 0.1
poweroff -f
