#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Installs the programs on a machine with a GPU, executes the guide's commands as they are written,
# from `doctor` to two tenants, and says how long each block takes. Then it removes what it has
# installed. ./serve and ./train are gct-load. Needs root, and a machine without gctd.
#
#     usage: tests/hw/guide.sh DIR      DIR is the folder that ci/user.sh has made
set -u
here=$(dirname "$(realpath "$0")")
. "$here/lib.sh"
unset GCTGROUP_DIR
PATH=/usr/local/sbin:/usr/local/bin:$PATH
groups=/etc/gctgroup/groups.toml
for taken in /etc/gctgroup /run/gctgroup/admin.sock /usr/local/bin/gctctl; do
	[ ! -e $taken ] || { echo "$taken exists: this script is for a machine without gctgroup"; exit 1; }
done
trap 'PREFIX=/usr/local "$here/../../ci/install.sh" uninstall; rm -rf /etc/gctgroup; finish' EXIT

# The blocks of three sections.
awk -v to="$work/block" '/^## / { in_section = /^## (Install|A first limit|A service beside a training)$/ }
	in_section && /^    / { if (!in_block) number++; in_block = 1; print substr($0, 5) >(to number); next }
	{ in_block = 0 }' "$here/../../gctgroup-docs/guide.md"
mkdir "$work/here"
cd "$work/here" || exit 1
cat >serve <<'SERVE'
#!/bin/sh
exec /usr/local/lib/gctgroup/gct-load critical --seconds 8 >>serve.said
SERVE
cat >train <<'TRAIN'
#!/bin/sh
exec /usr/local/lib/gctgroup/gct-load best-effort --seconds 8 >>train.said
TRAIN
chmod +x serve train

# What a machine without systemd does for the units.
installs() {
	PREFIX=/usr/local PROGRAMS=$bin "$here/../../ci/install.sh" install || return
	gctd >"$work/gctd.log" 2>&1 &
	daemon=$!
	eventually gctctl --user version >/dev/null
}
systemctl() {
	[ "$*" = "restart gctgroup-groups" ] && gctctl apply $groups
}
export -f systemctl
export groups

begin=$(date +%s%N)
elapsed() { echo $((($(date +%s%N) - begin) / 1000000)); }
# executes NUMBER: a block as somebody types it, in this shell's folder. Programs run on behind it.
executes() {
	bash -e -o pipefail "$work/block$1" >"$work/said$1" 2>&1 && return
	cat "$work/said$1"
	return 1
}
check "install.sh installs, and gctd runs" installs
echo "        $(elapsed) ms"
# The first block installs the package.
for ((n = 2; ; n++)); do
	[ -e "$work/block$n" ] || break
	check "$(head -n 1 "$work/block$n")" executes $n
	echo "        $(elapsed) ms"
done
both_ended() { [ "$(wc -l <serve.said)" = 2 ] && [ "$(wc -l <train.said)" = 1 ]; }
check "service and training end with their results" patiently both_ended
cat "$work/said2" "$work/said6" serve.said train.said
check "it took less than five minutes" [ "$(elapsed)" -lt 300000 ]
echo "$passed passed, $failed failed"
[ $failed = 0 ]
