# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes container images. Source this file; do not run it.

# pack_image FOLDER NAME...: prints an archive as docker saves it, whose one layer is the folder.
pack_image() {
	local folder=$1 work layer config names
	shift
	mkdir -p "$folder"/{dev,etc,proc,run,sys,tmp}
	work=$(mktemp -d)
	busybox tar -C "$folder" -cf "$work/layer.tar" .
	layer=$(sha256sum <"$work/layer.tar" | cut -d' ' -f1)
	printf '{"architecture":"amd64","os":"linux","config":{"Cmd":["/bin/sleep","1000000"],"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$layer" >"$work/config.json"
	config=$(sha256sum <"$work/config.json" | cut -d' ' -f1)
	mv "$work/config.json" "$work/$config.json"
	names=$(printf ',"%s"' "$@")
	printf '[{"Config":"%s.json","RepoTags":[%s],"Layers":["layer.tar"]}]' "$config" "${names#,}" >"$work/manifest.json"
	(cd "$work" && busybox tar -cf - "$config.json" manifest.json layer.tar)
	rm -r "$work"
}
