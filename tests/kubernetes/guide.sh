# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Executes each block of commands of the guide's sections Podman and Kubernetes. Sourced by node.sh.

# Where the guide's paths begin, and for the files that it makes.
mkdir -p /tmp/guide
ln -s /gct/deploy /tmp/guide/deploy

mawk '/^## / { section = substr($0, 4) }
	section != "Podman" && section != "Kubernetes" { next }
	/^    / { if (!in_block) number[section]++; in_block = 1
		print substr($0, 5) >("/tmp/guide/" section number[section]); next }
	{ in_block = 0 }' /gct/guide.md

# Makes programs that put this node's image and options in place of those that stand for the user's.
stand_ins() {
	# The container stays, and the last line is its id.
	podman() {
		in_podman "$1" -d --network none --cgroup-parent "/$CGROUP/podman" "${@:3:2}" \
			localhost/busybox:1 tenant 512 600
	}
	in_podman() {
		command podman --runtime runc --cgroup-manager cgroupfs "$@"
	}
	helm() {
		local words=("${@/image=*/image=localhost/gctgroup:1}")
		[ "$1" != install ] || words+=(--values /gct/tests/values.yaml)
		command helm "${words[@]}"
	}
	kubectl() {
		[ "$1 ${3:-}" != "apply web.yaml" ] || busybox sed -i 's|^\( *\)image: .*|\1image: localhost/busybox:1\n\1imagePullPolicy: Never\n\1command: [tenant, "512", "600"]|
			s|^spec:|&\n  dnsPolicy: Default\n  terminationGracePeriodSeconds: 0|' web.yaml
		command kubectl "$@"
	}
}

# block SECTION NUMBER: executes a block as somebody types it.
block() {
	(
		stand_ins
		cd /tmp/guide
		set -e
		. "./$1$2"
	) >/gct/logs/guide-$1$2.log 2>&1 || { cat /gct/logs/guide-$1$2.log; return 1; }
}

no_other_block() {
	is "$(ls /tmp/guide | grep -c "^$1[0-9]")" "$2"
}
