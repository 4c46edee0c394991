#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes what the job `kubernetes` runs: build/kubernetes/bin with a kubelet, an API
# server, a scheduler and a controller manager, compiled from Debian 12's source of
# Kubernetes, the last one that is whole, with Debian 12's Go; and build/kubernetes/root,
# packages of Debian 13 (etcd, containerd, runc, kubectl), unpacked as a root file system.
# Nothing of it is installed.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"
. "$ROOT/ci/apt.sh"
APT_HOME=$BUILD/apt-kubernetes

COMPONENTS=(kubelet kube-apiserver kube-scheduler kube-controller-manager)
ROOT_PACKAGES=(bash busybox-static containerd containernetworking-plugins coreutils etcd-server
	grep iproute2 kubectl mount openssl podman runc util-linux)

apt_sources() {
	printf '%s\n' "deb $1 trixie main" "deb $1 bookworm main" "deb-src $1 bookworm main"
}

# Runs go build for one package, or another command of Go's. The source has no module
# that Go 1.19 accepts without the network, so it is built the old way, below GOPATH.
in_go() {
	local dir=$1
	shift
	env -C "$dir/gopath/src/k8s.io/kubernetes" GOROOT="$dir/go/usr/lib/go-1.19" \
		GOPATH="$dir/gopath" GOCACHE="$dir/gocache" HOME="$dir" GO111MODULE=off \
		CGO_ENABLED=0 GOPROXY=off PATH="$dir/go/usr/lib/go-1.19/bin:$PATH" "$@"
}

unpack_source() {
	local dir=$1 package archive
	rm -rf "$dir/go" "$dir/gopath"
	mkdir -p "$dir/go" "$dir/gopath/src/k8s.io/kubernetes"
	for package in golang-1.19-go golang-1.19-src; do
		(cd "$dir" && private_apt apt-get download "$package")
		dpkg-deb -x "$dir/$package"_*.deb "$dir/go"
	done
	(cd "$dir" && private_apt apt-get source --download-only --only-source \
		"kubernetes=$KUBERNETES_DEBIAN")
	archive=$(ls "$dir"/kubernetes_*.orig.tar.*z)
	tar -C "$dir/gopath/src/k8s.io/kubernetes" --strip-components=1 -xf "$archive"
	name_authority "$dir/gopath/src/k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/endpoint.go"
	iterate_as_go_does "$dir/gopath/src/k8s.io/kubernetes/vendor/github.com/modern-go/reflect2"
}

# Before 1.26 the kubelet names a plugin's socket as the authority of its requests. A path is none,
# so servers that are not Go's refuse them. This is the line of 1.26 (kubernetes#112597).
name_authority() {
	sed -i 's/grpc\.WithInsecure(), grpc\.WithBlock(),/grpc.WithAuthority("localhost"), &/' "$1"
	grep -q 'WithAuthority("localhost")' "$1"
}

# Since Go 1.18 reflect.mapiterinit fills an iterator of its caller's. The source's reflect2 1.0.1
# passes none, so maps are iterated where some register points, and the API server dies at its next
# JSON. These are the lines of reflect2 1.0.2, with an iterator as large as Go 1.19's.
iterate_as_go_does() {
	sed -i -e 's/^func mapiterinit(.*/func mapiterinit(rtype, m unsafe.Pointer, it *hiter)/' \
		-e 's/^\t\/\/ rest fields are ignored/\tpointers [6]unsafe.Pointer\n\tnumbers [4]uintptr/' "$1/unsafe_link.go"
	sed -i -e 's/^\treturn &UnsafeMapIterator{/\tit := new(hiter)\n\tmapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), it)\n&/' \
		-e 's/mapiterinit(.*obj)),$/it,/' "$1/unsafe_map.go"
	grep -q 'it \*hiter' "$1/unsafe_link.go" && grep -q 'numbers ' "$1/unsafe_link.go" &&
		grep -q 'hiter: *it,' "$1/unsafe_map.go"
}

# The API server embeds a description of its types, which the source lacks.
generate_openapi() {
	local dir=$1 packages
	in_go "$dir" go build -o "$dir/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
	packages=$(in_go "$dir" grep -rl --include='*.go' '+k8s:openapi-gen=' staging/src/k8s.io pkg cmd |
		grep -vE '_test\.go|zz_generated|code-generator|sample-|_examples|kube-aggregator/pkg/generated' |
		xargs -n1 dirname | sort -u |
		sed 's#^staging/src/k8s\.io#k8s.io/kubernetes/vendor/k8s.io#; t; s#^#k8s.io/kubernetes/#' |
		paste -sd,)
	in_go "$dir" "$dir/openapi-gen" -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt \
		-i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -r "$dir/violations"
}

build_components() {
	local dir=$1 component flags vendored=k8s.io/kubernetes/vendor/k8s.io
	unpack_source "$dir"
	generate_openapi "$dir"
	flags="-s -w -X $vendored/component-base/version.gitVersion=v$KUBERNETES_VERSION"
	flags+=" -X $vendored/client-go/pkg/version.gitVersion=v$KUBERNETES_VERSION"
	flags+=" -X $vendored/component-base/version.gitMajor=1 -X $vendored/component-base/version.gitMinor=20"
	mkdir -p "$dir/bin"
	for component in "${COMPONENTS[@]}"; do
		[ ! -x "$dir/bin/$component" ] || continue
		in_go "$dir" go build -p 2 -ldflags "$flags" -o "$dir/bin/$component.new" "k8s.io/kubernetes/cmd/$component"
		mv "$dir/bin/$component.new" "$dir/bin/$component"
	done
	"$dir/bin/kubelet" --version
	chmod -R u+w "$dir"
	rm -rf "$dir"/{go,gopath,gocache,openapi-gen,violations} "$dir"/*.deb "$dir"/kubernetes_*
}

# Prints the files of the packages of the root file system and of all below them.
closure() {
	private_apt apt-get -t trixie --no-install-recommends -y --print-uris install "${ROOT_PACKAGES[@]}" |
		sed -n "s/^'[^']*' \([^ ]*\.deb\) .*/\1/p" | sort
}

unpack_root() {
	local dir=$1 deb
	private_apt apt-get -t trixie --no-install-recommends -y --download-only install "${ROOT_PACKAGES[@]}"
	rm -rf "$dir/root"
	# The packages expect the merged /usr.
	mkdir -p "$dir/root/usr"/{bin,sbin,lib,lib64}
	for deb in bin sbin lib lib64; do
		ln -s "usr/$deb" "$dir/root/$deb"
	done
	for deb in "${files[@]}"; do
		dpkg-deb --fsys-tarfile "$APT_HOME/cache/archives/$deb" | tar -C "$dir/root" -x --keep-directory-symlink
		rm "$APT_HOME/cache/archives/$deb"
	done
	mkdir -p "$dir/root"/{proc,sys,dev,run,tmp,var/log,.old,gct}
	printf 'root:x:0:0:root:/root:/bin/bash\n' >"$dir/root/etc/passwd"
	printf 'root:x:0:\n' >"$dir/root/etc/group"
	chroot "$dir/root" containerd --version
}

# The keys are made from what is built, and not from all of this script: compiling takes minutes.
# The versions of the packages are those of the day on which the store first had them.
components=$(store_dir kubernetes "$(content_key "$KUBERNETES_DEBIAN" "${COMPONENTS[*]}" \
	"$(declare -f in_go unpack_source name_authority iterate_as_go_does generate_openapi build_components)")")
root=$(store_dir kubernetes-root "$(content_key "${ROOT_PACKAGES[*]}" "$(declare -f unpack_root)")")
[ -e "$components/.complete" ] && [ -e "$root/.complete" ] || apt_refresh
build_once kubernetes "$(basename "$components")" "Kubernetes $KUBERNETES_VERSION" build_components
if [ ! -e "$root/.complete" ]; then
	mapfile -t files < <(closure)
	[ ${#files[@]} -gt 0 ] || die "Debian 13 has no candidate for ${ROOT_PACKAGES[*]}"
fi
build_once kubernetes-root "$(basename "$root")" "containerd, runc, etcd and kubectl of Debian 13" unpack_root
link_to "$components/bin" "$BUILD/kubernetes/bin"
link_to "$root/root" "$BUILD/kubernetes/root"
