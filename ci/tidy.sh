#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Rules of the source that can be checked: a licence in every source file, no
# stray white space, no file that grew too long, no lines that are too wide, no
# left-over marks, shell scripts that parse, pages that name what there is. Prints each
# violation; exits with 1 if there is one.
. "$(dirname "$0")/lib.sh"

# A file longer than this does more than one thing.
LINES_MAX=600
# Columns of a page, of a comment and of a commit's message. A row of a table cannot be wrapped, and
# the pages in results/ are written by programs.
PAGE_COLUMNS=120
COMMENT_COLUMNS=100
MESSAGE_COLUMNS=75
# Messages are checked behind this commit.
MESSAGES_SINCE=44a32cedde35b5891866c8d68a8650a90f093f8a

cd "$ROOT"
# too_wide FILE COLUMNS PATTERN: prints the lines of a file that match and are wider.
too_wide() {
	LC_ALL=C.UTF-8 awk -v file="$1" -v columns="$2" -v pattern="$3" \
		'length > columns && $0 ~ pattern { print file ":" FNR ": " $0; wide = 1 } END { exit !wide }' "$1"
}

violations=0
violation() {
	printf '%s\n' "$*"
	violations=$((violations + 1))
}

while read -r file; do
	[ -f "$file" ] && [ ! -L "$file" ] || continue
	case $file in
	LICENSES/* | *.pbcap | *.patch | *.lock | *.xz | tests/fixtures/* | tests/patches/bad/* | */snapshot_*.rs) continue ;;
	esac
	case $file in
	*.rs | *.c | *.h | *.sh | *.config | Makefile | */Makefile | Kbuild | .ci/run)
		head -n 3 "$file" | grep -q 'SPDX-License-Identifier: GPL-2.0 OR MIT' ||
			violation "$file: no SPDX line at the top"
		[ "$(wc -l <"$file")" -le $LINES_MAX ] ||
			violation "$file: more than $LINES_MAX lines"
		;;
	esac
	! grep -nE '[[:space:]]+$' "$file" /dev/null || violation "$file: white space at the end of a line"
	[ -z "$(tail -c 1 "$file")" ] || violation "$file: no newline at the end"
	# One layout: tests that fill a file lie in x/tests.rs beside x.rs.
	case $file in
	*_test.rs | *_tests.rs) violation "$file: tests of x.rs belong in x/tests.rs" ;;
	*.rs) ! grep -nE '^[[:space:]]*#\[path\b' "$file" /dev/null || violation "$file: a module at another path" ;;
	esac
	case $file in
	ci/tidy.sh) ;;
	*) ! grep -nE '\b(FIXME|XXX|TODO)\b' "$file" /dev/null || violation "$file: left-over mark" ;;
	esac
	case $file in
	gctgroup-docs/results/*) ;;
	*.md)
		! too_wide "$file" $PAGE_COLUMNS '^[^|]' ||
			violation "$file: lines of more than $PAGE_COLUMNS columns"
		;;
	esac
	case $file in
	# These do not keep it yet.
	rust/gct_core/lane/*.rs | tests/hw/*.rs) ;;
	*.rs | *.c | *.h)
		! too_wide "$file" $COMMENT_COLUMNS '^[ \t]*(//|/\*|\*)' ||
			violation "$file: comments of more than $COMMENT_COLUMNS columns"
		;;
	*.sh)
		! too_wide "$file" $COMMENT_COLUMNS '^[ \t]*#' ||
			violation "$file: comments of more than $COMMENT_COLUMNS columns"
		;;
	esac
	case $file in
	*.sh | .ci/run) bash -n "$file" || violation "$file: does not parse" ;;
	esac
done < <(git ls-files)
ci/pages.sh || violation "pages: names and links of what is not there"

# A clone may hold a part of the history, or none.
if git merge-base --is-ancestor $MESSAGES_SINCE HEAD 2>/dev/null; then
	! git log --format='%h%n%B' $MESSAGES_SINCE..HEAD |
		awk -v columns=$MESSAGE_COLUMNS 'length > columns { print; wide = 1 } END { exit !wide }' ||
		violation "messages of commits with lines of more than $MESSAGE_COLUMNS columns"
fi
[ $violations -eq 0 ]
