#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Checks that the pages (*.md) name what there is. Prints each violation; exits with 1 if there
# is one.
#
# * Links lead to files and headings of this tree.
# * A word in backticks with two underscores or more, such as `owned_work_is_done`, is the name of a
#   test, or stands in the code. So a test cannot be renamed or removed while a page counts on it.
#   `owned_slots_*` and `owned_slots_of..` are for what begins so, `.._by_the_gpu` for what ends so.
# * In gctgroup-docs/proof.md, what an item puts in backticks is a test of that item's place, or a
#   path. The places are those of AREAS below.
. "$(dirname "$0")/lib.sh"

# Names that no line of code has: of Linux and NVIDIA, parts of names, and examples.
ELSEWHERE='i_mmap_rwsem system_unbound_wq uvm_pmm_gpu_pma_evict_range replayable_faults_supported
full_proxy_release sm90_xmma_fprop k8s_default_web_server_3b5f0c1d9e8a'

cd "$ROOT"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files >"$work/files"

# Prints "AREA NAME" for each test. AREAS: host tests, tests in the simulation (gct-model), tests on
# the software GPU in a virtual machine, and tests on a GPU. The last two have names in tables.
git ls-files -z '*.rs' | xargs -0 awk '
	FNR == 1 {
		test = 0
		table = ""
		area = "host"
		if (FILENAME ~ /^userspace\/gct-model\//) area = "simulation"
		if (FILENAME ~ /\/kunit\.rs$/) area = "software-GPU"
		if (FILENAME ~ /^tests\/(rm-client|selftests|cuda-client)\//) table = "software-GPU"
		if (FILENAME ~ /^tests\/hw\//) table = "GPU"
	}
	/^[ \t]*#\[(tokio::)?test[](]/ { test = 1; next }
	test && match($0, /fn [a-z0-9_]+/) {
		print area, substr($0, RSTART + 3, RLENGTH - 3)
		test = 0
	}
	table != "" && match($0, /(^[ \t]*|\()"[a-z0-9_.]+",/) {
		split(substr($0, RSTART, RLENGTH), part, "\"")
		print table, part[2]
	}' >"$work/tests"

# Prints "FILE:LINE AREA NAME" for each name of a page, and "FILE:LINE link TARGET"; in the words
# of links and headings nothing is checked here. AREA is "any" but in the items of proof.md.
git ls-files -z '*.md' | xargs -0 awk -v files="$work/files" -v names="$work/names" '
	BEGIN {
		while ((getline file < files) > 0) {
			there[file] = 1
			while (sub(/\/[^\/]*$/, "", file)) there[file] = 1
		}
		there["."] = 1
	}
	# Resolves a path relative to the folder of a page.
	function resolve(page, path,    parts, count, i, kept, whole) {
		sub(/[^\/]*$/, "", page)
		count = split(page path, parts, "/")
		kept = 0
		for (i = 1; i <= count; i++) {
			if (parts[i] == "" || parts[i] == ".") continue
			if (parts[i] == ".." && kept > 0) { kept--; continue }
			parts[++kept] = parts[i]
		}
		whole = kept > 0 ? parts[1] : "."
		for (i = 2; i <= kept; i++) whole = whole "/" parts[i]
		return whole
	}
	FNR == 1 { fence = 0; area = "any"; items = FILENAME ~ /\/proof\.md$/ }
	/^[ \t]*```/ { fence = !fence; next }
	fence || /^    [^ -]/ && !items { next }
	/^#+ / {
		slug = tolower($0)
		sub(/^#+ +/, "", slug)
		gsub(/[^a-z0-9 _-]/, "", slug)
		gsub(/ /, "-", slug)
		again = seen[FILENAME, slug]++
		anchors[FILENAME "#" slug (again ? "-" again : "")] = 1
	}
	items && !/^  / {
		area = "any"
		if (match($0, /^- (host|simulation|software GPU|GPU)/)) {
			area = substr($0, 3, RLENGTH - 2)
			sub(/ /, "-", area)
		}
	}
	{
		at = FILENAME ":" FNR
		rest = $0
		while (match(rest, /`[^`]+`/)) {
			name = substr(rest, RSTART + 1, RLENGTH - 2)
			rest = substr(rest, RSTART + RLENGTH)
			if (area != "any" || name ~ /^(\.\.)?[a-z0-9_][a-z0-9_.]*\*?$/ && name ~ /[a-z0-9]_.*_/ && name !~ /^_/)
				print at, area, name > names
		}
		rest = $0
		while (match(rest, /\]\([^)]+\)/)) {
			target = substr(rest, RSTART + 2, RLENGTH - 3)
			rest = substr(rest, RSTART + RLENGTH)
			if (target ~ /^[a-z]+:/) continue
			links[++count] = at
			place = target
			sub(/#.*/, "", place)
			targets[count] = place == "" ? FILENAME : resolve(FILENAME, place)
			heading[count] = target ~ /#/ ? substr(target, index(target, "#")) : ""
		}
	}
	END {
		for (i = 1; i <= count; i++) {
			if (!(targets[i] in there))
				print links[i] ": a link to " targets[i] ", which is not there"
			else if (heading[i] != "" && targets[i] ~ /\.md$/ && !((targets[i] heading[i]) in anchors))
				print links[i] ": a link to a heading that is not there: " targets[i] heading[i]
		}
	}' >"$work/violations"

# Of names that are no test, lines of the code that have them. Comments do not count, nor do the
# patches that take defences out: both can name what has gone.
awk 'NR == FNR { test[$2] = 1; next } $2 == "any" && !($3 in test) { print $3 }' "$work/tests" "$work/names" |
	sed 's/^\.\.//; s/\*$//; s/\.\.$//' | LC_ALL=C sort -u >"$work/others"
git grep -hIFf "$work/others" -- . ':!*.md' ':!tests/mutations' ':!tests/fixtures' ':!ci/pages.sh' ':!*.json' |
	grep -vE '^[[:space:]]*(//|\*|#[[:space:]])' | grep -oE '[A-Za-z0-9_]+' | LC_ALL=C sort -u >"$work/words"
tr -s ' \n' '\n' <<<"$ELSEWHERE" >>"$work/words"

awk -v files="$work/files" -v words="$work/words" '
	BEGIN {
		while ((getline file < files) > 0) {
			there[file] = 1
			while (sub(/\/[^\/]*$/, "", file)) there[file] = 1
		}
		while ((getline word < words) > 0) word_of[++all] = word
		for (i = 1; i <= all; i++) known[word_of[i]] = 1
	}
	NR == FNR { test["any " $2] = test[$1 " " $2] = 1; next }
	# Returns whether a test of an area, or with "any" a word of the code, begins or ends so.
	function fits(area, part, ends,    key, name) {
		for (key in test) {
			if (substr(key, 1, length(area) + 1) != area " ") continue
			name = substr(key, length(area) + 2)
			if (ends ? substr(name, length(name) - length(part) + 1) == part : index(name, part) == 1) return 1
		}
		if (area == "any") for (name in known)
			if (ends ? substr(name, length(name) - length(part) + 1) == part : index(name, part) == 1) return 1
		return 0
	}
	{
		name = $3
		if (($2 " " name) in test || $2 == "any" && name in known || $2 != "any" && name in there) next
		# The exporter composes the names of metrics, and a test of its own compares its page.
		if ($2 == "any" && name ~ /^gctgroup_/) next
		# A file or a field, unless tests have names that begin so.
		if ($2 == "any" && name ~ /^[a-z0-9_]+\.[a-z]/ && !fits("any", substr(name, 1, index(name, ".")), 0)) next
		if (name ~ /\.\.$/ && fits($2, substr(name, 1, length(name) - 2), 0)) next
		if (name ~ /\*$/ && fits($2, substr(name, 1, length(name) - 1), 0)) next
		if (name ~ /^\.\._/ && fits($2, substr(name, 3), 1)) next
		what = $2 == "any" ? "no test and no code has this name" : "no test of this place has this name"
		gsub(/-/, " ", $2)
		print $1 ": " what ": " name ($2 == "any" ? "" : " (" $2 ")")
	}' "$work/tests" "$work/names" >>"$work/violations"
cat "$work/violations"
[ ! -s "$work/violations" ]
