# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# A private apt: it reads its own list of sources and keeps its own indexes, so
# that packages of other Debian releases can be fetched without the machine's
# configuration changing. Nothing fetched through it is installed. Source this
# file after lib.sh.

APT_HOME=$BUILD/apt
DEBS=$BUILD/debs
DEB_STORE=$STORE/debs

# Set when the indexes could be refreshed in this run.
apt_fresh=

# Where this machine gets Debian from; the private lists use the same server.
debian_mirror() {
	apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' |
		awk '$1 == "Packages" && $2 == "bookworm" && $3 == "main" { print $4; exit }'
}

apt_options() {
	printf '%s\n' \
		-oDir::Etc::sourcelist="$APT_HOME/sources.list" \
		-oDir::Etc::sourceparts=/dev/null \
		-oDir::Etc::preferences=/dev/null \
		-oDir::Etc::preferencesparts=/dev/null \
		-oDir::State="$APT_HOME/state" \
		-oDir::State::status="$APT_HOME/state/status" \
		-oDir::Cache="$APT_HOME/cache" \
		-oAPT::Sandbox::User= \
		-oAPT::Get::List-Cleanup=true \
		-oAcquire::Languages=none \
		-oAcquire::Retries=3
}

private_apt() {
	local tool=$1
	shift
	local options
	mapfile -t options < <(apt_options)
	"$tool" "${options[@]}" "$@"
}

# Prints the list of sources of a server. A script may define it anew, with an
# APT_HOME of its own.
apt_sources() {
	printf '%s\n' "deb $1 trixie main contrib" "deb $1 trixie-backports main contrib" \
		"deb-src $1 bookworm contrib"
}

apt_update() {
	local mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg signed=
	mirror=$(debian_mirror)
	[ -n "$mirror" ] ||
		die "apt has no source for Debian bookworm main on this machine"
	[ -e "$keyring" ] && signed="[signed-by=$keyring] "
	mkdir -p "$APT_HOME/state/lists/partial" "$APT_HOME/cache/archives/partial"
	# The empty status file makes apt believe that nothing is installed, so
	# that a closure of dependencies is complete.
	: >"$APT_HOME/state/status"
	apt_sources "$signed$mirror" >"$APT_HOME/sources.list"
	private_apt apt-get -oAPT::Update::Error-Mode=any update
}

# Refreshes the indexes once per run of a script; a failure is not final, since
# the store may have the package.
apt_refresh() {
	[ -z "$apt_fresh" ] || return 0
	printf '==> Package indexes of Debian (%s)\n' "${APT_HOME#"$ROOT/"}"
	local start=$SECONDS
	mkdir -p "$BUILD/log"
	if apt_update >"$BUILD/log/apt-update.log" 2>&1; then
		apt_fresh=yes
		note "done in $((SECONDS - start)) s"
	else
		apt_fresh=failed
		note "failed after $((SECONDS - start)) s ($BUILD/log/apt-update.log); trying what was downloaded before"
	fi
}

# Versions of a package known to the indexes, newest first.
deb_versions() {
	[ "$apt_fresh" = yes ] || return 0
	private_apt apt-cache madison "$1" | awk '$NF == "Packages" { print $3 }' | sort -Vru
}

# Downloads PACKAGE=VERSION into the store unless it is there; prints its path.
download_deb() {
	local package=$1 version=$2 file incoming
	file=$DEB_STORE/${package}_${version//:/%3a}.deb
	if [ ! -e "$file" ]; then
		incoming=$(mktemp -d "$DEB_STORE/incoming.XXXXXX")
		(cd "$incoming" && private_apt apt-get download "$package=$version") >&2 || {
			rm -rf "$incoming"
			return 1
		}
		mv "$incoming"/*.deb "$file"
		rmdir "$incoming"
	fi
	printf '%s\n' "$file"
}

# find_deb PACKAGE VERSION-PREFIX: leaves in the variable found the newest version
# with that prefix that can be downloaded, else an earlier download; fails if there
# is neither.
find_deb() {
	local package=$1 prefix=$2 version
	for version in $(deb_versions "$package"); do
		case $version in "$prefix"*) ;; *) continue ;; esac
		found=$(download_deb "$package" "$version" 2>"$BUILD/log/$package.log") && return
		note "$package $version is in the index but cannot be downloaded ($BUILD/log/$package.log)"
	done
	found=$(find "$DEB_STORE" -name "${package}_${prefix}*.deb" | sort -Vr | head -n 1)
	[ -n "$found" ] || return
	note "not downloadable now, using an earlier download"
}

# Says what the indexes have of a package, or why they say nothing.
deb_offer() {
	local versions
	versions=$(deb_versions "$1" | xargs)
	if [ "$apt_fresh" != yes ]; then
		printf '%s: the package indexes could not be read (%s)' "$1" "$BUILD/log/apt-update.log"
	else
		printf '%s: Debian has %s' "$1" "${versions:-none}"
	fi
}

# fetch_first PACKAGE=PREFIX...: makes $DEBS/PACKAGE.deb the first of the packages
# that can be had, in the newest version with its prefix. What this clone has
# already stays.
fetch_first() {
	local wanted found offers=() start=$SECONDS
	mkdir -p "$DEBS" "$DEB_STORE"
	for wanted; do
		[ -e "$DEBS/${wanted%%=*}.deb" ] || continue
		found=$(basename "$(readlink "$DEBS/${wanted%%=*}.deb")")
		[[ $found = "${wanted/=/_}"* ]] || continue
		printf '==> Package %s\n' "${wanted%%=*}"
		note "already there ($found)"
		return
	done
	apt_refresh
	printf '==> Package %s\n' "$*"
	for wanted; do
		if find_deb "${wanted%%=*}" "${wanted#*=}"; then
			link_to "$found" "$DEBS/${wanted%%=*}.deb"
			note "$(basename "$found"), $(($(stat -Lc %s "$found") / 1048576)) MiB, $((SECONDS - start)) s"
			return
		fi
		offers+=("$(deb_offer "${wanted%%=*}")")
	done
	{
		printf 'error: none of these can be had: %s\n' "$*"
		printf '  - %s\n' "${offers[@]}"
		printf 'Another version must be added to ci/versions.sh and tested, or an older file put into %s\n' "$DEB_STORE"
	} >&2
	exit 1
}

# fetch_orig SOURCE VERSION: makes $DEBS/SOURCE.orig.tar.xz the upstream tarball
# of that source package.
fetch_orig() {
	local source=$1 version=$2 file incoming
	file=$DEB_STORE/${source}_$version.orig.tar.xz
	printf '==> Source %s %s\n' "$source" "$version"
	if [ -e "$DEBS/$source.orig.tar.xz" ]; then
		note "already there ($(basename "$file"))"
		return
	fi
	mkdir -p "$DEBS" "$DEB_STORE"
	local start=$SECONDS
	if [ ! -e "$file" ]; then
		apt_refresh
		incoming=$(mktemp -d "$DEB_STORE/incoming.XXXXXX")
		(cd "$incoming" && private_apt apt-get source --download-only --tar-only \
			--only-source "$source=$version-1") >"$BUILD/log/$source.log" 2>&1 || true
		# apt names the file by the pool's spelling and leaves other parts
		# of the package aside.
		mv "$incoming/${source}_$version.orig.tar.xz" "$file" 2>/dev/null ||
			{
				rm -rf "$incoming"
				die "Debian source package $source ($version) cannot be downloaded; see $BUILD/log/$source.log and $BUILD/log/apt-update.log"
			}
		rm -rf "$incoming"
	fi
	link_to "$file" "$DEBS/$source.orig.tar.xz"
	note "$(basename "$file"), $(($(stat -Lc %s "$file") / 1048576)) MiB, $((SECONDS - start)) s"
}
