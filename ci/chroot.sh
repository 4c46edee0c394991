# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs scripts in the root file systems of ci/setup-chroot.sh. Source this file after lib.sh.

# The releases of Debian beside 12 in which the guide is followed.
GUIDE_RELEASES=(trixie forky sid)

# Returns whether this machine lets us make the namespaces and mounts for them.
can_chroot() {
	[ "$(id -u)" -eq 0 ] && unshare -m -p -n -u -f --propagation private true 2>/dev/null
}

# in_chroot NAME FOLDER SCRIPT [BIND...]: runs a bash script in build/chroot/NAME. What it changes
# there lies in memory and goes with it; FOLDER of this machine is /gct, and stays. Each BIND, a
# folder of this machine, is there under its own name, read-only. There is no network but the
# loopback device, and all processes end with the script.
in_chroot() {
	local name=$1 folder=$2 script=$3
	shift 3
	unshare -m -p -n -u -f --kill-child --propagation private bash -s \
		"$(readlink -f "$BUILD/chroot/$name")" "$(readlink -f "$folder")" "$@" 3<<<"$script" <<-'ENTER'
			set -eu
			lower=$1 folder=$2
			shift 2
			mount -t tmpfs tmpfs /mnt
			mkdir /mnt/upper /mnt/work /mnt/root
			mount -t overlay -o "lowerdir=$lower,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
			mount -t proc proc /mnt/root/proc
			mkdir -p /mnt/root/gct
			mount --bind "$folder" /mnt/root/gct
			for bind; do
				mkdir -p "/mnt/root$bind"
				mount --bind "$bind" "/mnt/root$bind"
				mount -o remount,bind,ro "/mnt/root$bind"
			done
			ip link set lo up
			exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
				LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot /mnt/root bash /dev/fd/3 </dev/null
		ENTER
}
