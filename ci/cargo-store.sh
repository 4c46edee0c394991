# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Keeps in the store what cargo has compiled of crates from the registry, for all
# profiles and targets, so that a new clone compiles only crates of its own. Cargo
# tells by name, version, features, flags and compiler whether such a crate is the
# one that it needs; of crates in the clone, which it tells by their files' times,
# nothing is kept. Source this file after lib.sh.

# Names and versions of the crates that come from the registry.
registry_crates() {
	awk '/^name = / { name = $3 } /^version = / { version = $3 }
		/^source = "registry/ { print name, version }' \
		"$ROOT/userspace/Cargo.lock" "$ROOT/userspace/fuzz/Cargo.lock" | tr -d '"' | sort -u
}

crates_entry() {
	store_dir cargo "$(content_key "$(rustc --version --verbose)" "$(registry_crates)" \
		"$(sed -n '/^\[profile/,$p' "$ROOT/userspace/Cargo.toml")" "@$ROOT/ci/cargo-store.sh")"
}

# restore_crates: fills a build directory in which cargo has built nothing.
restore_crates() {
	local entry
	entry=$(crates_entry)
	[ -e "$entry" ] && [ -z "$(ls "$CARGO_TARGET_DIR" 2>/dev/null)" ] || return 0
	touch "$entry"
	mkdir -p "$CARGO_TARGET_DIR"
	cp -a "$entry/." "$CARGO_TARGET_DIR"
}

# Paths in the build directory, of what was compiled of the registry's crates. A
# crate's files bear the hash of its fingerprint's directory.
registry_files() {
	local names profile unit name
	names=$(registry_crates | cut -d' ' -f1)
	find . -name .fingerprint -prune | while read -r profile; do
		profile=${profile%/.fingerprint}
		for unit in "$profile"/.fingerprint/*; do
			name=$(basename "$unit")
			grep -qxF "${name%-*}" <<<"$names" || continue
			printf '%s\n' "$unit"
			[ ! -e "$profile/build/$name" ] || printf '%s\n' "$profile/build/$name"
			find "$profile/deps" -name "*-${name##*-}.*"
		done
	done
}

# save_crates: makes the entry from a build directory unless there is one. Two
# clones may do so at once; the second one's copy is dropped.
save_crates() {
	local entry new
	entry=$(crates_entry)
	[ ! -e "$entry" ] || return 0
	mkdir -p "$(dirname "$entry")"
	new=$(mktemp -d "$entry.XXXXXX")
	(cd "$CARGO_TARGET_DIR" && registry_files | rsync -a -r --files-from=- . "$new/")
	touch "$new"
	mv -T "$new" "$entry" 2>/dev/null || rm -rf "$new"
	keep_newest cargo 2
}
