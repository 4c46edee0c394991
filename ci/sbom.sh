#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: sbom.sh DIR
#
# Writes what the installed programs are made of: DIR/sbom.spdx.json (SPDX 2.3), with the crates
# linked into them, their checksums and licences, and DIR/third-party-licences with the texts of
# these licences.
. "$(dirname "$0")/lib.sh"

out=${1:?usage: sbom.sh DIR}
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
version=$("$ROOT/ci/version.sh")
cd "$ROOT/userspace"

# Lines "name version licence" of what is linked. Macros run in the compiler and are not.
cargo tree --locked --edges normal,no-proc-macro --target x86_64-unknown-linux-gnu --prefix none \
	-p gctd -p gctctl -p gct-exporter -p gct-device-plugin -p gct-preload -p gct-load --format '{p}|{l}' |
	sed -n '/ (\//d; s, (\*)$,,; s,^\([^ ]*\) v\([^ |]*\)[^|]*|\(.*\)$,\1 \2 \3,p' |
	sed 's,/, OR ,g' | LC_ALL=C sort -u >"$scratch/crates"
[ -s "$scratch/crates" ] || die "cargo tree lists no crate"
# The standard library is linked, too.
printf 'std %s MIT OR Apache-2.0\n' "$(rustc --version | cut -d' ' -f2)" >>"$scratch/crates"
# So is GCC's unwinder, into the preload library.
printf 'libgcc %s GPL-3.0-or-later WITH GCC-exception-3.1\n' "$("${CC:-cc}" -dumpfullversion)" >>"$scratch/crates"

# Lines "name version checksum" of Cargo.lock.
awk '$1 == "name" { name = $3 } $1 == "version" { version = $3 } $1 == "checksum" { print name, version, $3 }' \
	Cargo.lock | tr -d '"' >"$scratch/checksums"

created=$(TZ=UTC date -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%Y-%m-%dT%H:%M:%SZ)
awk -v version="$version" -v created="$created" '
	NR == FNR { checksum[$1 " " $2] = $3; next }
	FNR == 1 {
		print "{\"spdxVersion\": \"SPDX-2.3\", \"dataLicense\": \"CC0-1.0\", \"SPDXID\": \"SPDXRef-DOCUMENT\","
		print " \"name\": \"gctgroup-" version "\","
		print " \"documentNamespace\": \"urn:gctgroup:" version "\","
		print " \"creationInfo\": {\"created\": \"" created "\", \"creators\": [\"Tool: ci/sbom.sh\"]},"
		print " \"packages\": ["
		print "  {\"name\": \"gctgroup\", \"SPDXID\": \"SPDXRef-gctgroup\", \"versionInfo\": \"" version "\","
		print "   \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false,"
		printf "   \"licenseDeclared\": \"GPL-2.0-only OR MIT\"}"
	}
	{
		name = $1; release = $2; licence = $0
		sub(/^[^ ]* [^ ]* /, "", licence)
		id = "SPDXRef-" name "-" release
		gsub(/[^A-Za-z0-9.-]/, "-", id)
		ids[++count] = id
		printf ",\n  {\"name\": \"%s\", \"SPDXID\": \"%s\", \"versionInfo\": \"%s\",\n", name, id, release
		printf "   \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false,\n"
		if ((name " " release) in checksum) {
			printf "   \"checksums\": [{\"algorithm\": \"SHA256\", \"checksumValue\": \"%s\"}],\n", checksum[name " " release]
			printf "   \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\","
			printf " \"referenceLocator\": \"pkg:cargo/%s@%s\"}],\n", name, release
		}
		printf "   \"licenseDeclared\": \"%s\"}", licence
	}
	END {
		print "],\n \"relationships\": ["
		printf "  {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\","
		printf " \"relatedSpdxElement\": \"SPDXRef-gctgroup\"}"
		for (i = 1; i <= count; i++) {
			printf ",\n  {\"spdxElementId\": \"SPDXRef-gctgroup\", \"relationshipType\": \"STATIC_LINK\","
			printf " \"relatedSpdxElement\": \"%s\"}", ids[i]
		}
		print "]}"
	}' "$scratch/checksums" "$scratch/crates" >"$out/sbom.spdx.json"

# Each text once, below the names of the crates that have it.
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
while read -r name release licence; do
	texts=("$registry"/*/"$name-$release"/[LC][IO][CP][EY]*)
	if [ ! -e "${texts[0]}" ]; then
		printf '%s %s: %s, without a text of its own\n' "$name" "$release" "$licence" >>"$scratch/without"
		continue
	fi
	for text in "${texts[@]}"; do
		[ -f "$text" ] || continue
		sum=$(sha256sum <"$text" | cut -d' ' -f1)
		cp "$text" "$scratch/$sum.text"
		printf '%s %s (%s)\n' "$name" "$release" "$licence" >>"$scratch/$sum.crates"
	done
done <"$scratch/crates"
{
	printf 'Licences of the crates that the programs of gctgroup %s contain.\n\n' "$version"
	cat "$scratch/without" 2>/dev/null || true
	for names in "$scratch"/*.crates; do
		printf '\n%s\n' ------------------------------------------------------------------------
		LC_ALL=C sort -u "$names"
		printf '\n'
		cat "${names%.crates}.text"
	done
} >"$out/third-party-licences"
