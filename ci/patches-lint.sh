#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: patches-lint.sh PATCH...
#
# Checks what a reviewer would otherwise have to look for in every patch: the
# mail header and its fields, and that what is added to NVIDIA's files is a
# guarded call and nothing else. Prints "PATCH: complaint" for each finding and
# exits with 1 if there is one.
#
# 0001 makes the driver build on a new kernel and adds ordinary code, so only
# the general rules hold for it.

set -euo pipefail

# A hook is a guard and a call, with a blank line: four lines in one place.
HUNK_LINES_MAX=4
# The most that one patch adds to one of NVIDIA's files: three hooks.
FILE_LINES_MAX=12
SUBJECT_CHARS_MAX=72
# Who writes and signs every patch.
MAINTAINERS='gctgroup maintainers <maintainers@gctgroup.dev>'

complaints=0

complain() {
	printf '%s: %s\n' "$(basename "$1")" "$2"
	complaints=$((complaints + 1))
}

# The day of the patch is that of its Last-Update, and has come.
lint_date() {
	local day update
	day=$(date -u -d "$(sed -n 's/^Date: //p' "$1" | head -1)" +%F) || day=
	update=$(sed -n 's/^Last-Update: //p' "$1" | head -1)
	[ -n "$day" ] && [ "$day" = "$update" ] || complain "$1" "is of $day, its Last-Update says $update"
	[[ ! $day > $(date -u +%F) ]] || complain "$1" "is dated $day, which is to come"
}

lint_header() {
	local patch=$1 header subject
	header=$(sed '/^---$/,$d' "$patch")
	subject=$(sed -n '/^Subject: /{s/^Subject: \[PATCH[^]]*\] //p;q}' <<<"$header")
	grep -qxF "From: $MAINTAINERS" <<<"$header" || complain "$patch" "is not from $MAINTAINERS"
	grep -q '^Signed-off-by: ' <<<"$header" || complain "$patch" "its text has no Signed-off-by: "
	! grep '^Signed-off-by: ' <<<"$header" | grep -vqxF "Signed-off-by: $MAINTAINERS" ||
		complain "$patch" "is signed by somebody else than $MAINTAINERS"
	lint_date "$patch"
	grep -q '^Subject: \[PATCH [0-9]*/[0-9]*\] ' <<<"$header" || complain "$patch" "has no numbered Subject"
	[[ $subject =~ ^(nvidia|nvidia-uvm|rm):\ [a-z].*[^.]$ ]] ||
		complain "$patch" "its Subject is not 'area: imperative summary'"
	[ ${#subject} -le $SUBJECT_CHARS_MAX ] || complain "$patch" "its Subject is too long"
	local field
	for field in 'Forwarded: ' 'Last-Update: ' 'Cost'; do
		grep -q "^$field" <<<"$header" || complain "$patch" "its text has no $field"
	done
	case $(basename "$patch") in
	000[123]-*) ;;
	*)
		for field in Context Trust 'Cost when disabled'; do
			grep -q "$field" <<<"$header" || complain "$patch" "its text does not say $field"
		done
		;;
	esac
}

# Prints "FILE<TAB>HUNK<TAB>SIGN<TAB>TEXT" for every changed line.
changed_lines() {
	awk '
		/^diff --git / { file = ""; hunk = 0; body = 0; next }
		/^\+\+\+ / && !body { file = $2; sub(/^b\//, "", file); next }
		/^@@ / { hunk++; body = 1; next }
		/^-- $/ { body = 0; next }
		body && /^[-+]/ { print file "\t" hunk "\t" substr($0, 1, 1) "\t" substr($0, 2) }
	' "$1"
}

lint_added_text() {
	local patch=$1 added
	added=$(changed_lines "$patch" | sed -n 's/^\([^\t]*\)\t[0-9]*\t+\t/\1:/p')
	! grep -q '[^:][[:blank:]]$\|:[[:blank:]][[:blank:]]*$' <<<"$added" ||
		complain "$patch" "adds trailing blanks"
	! grep -v 'Kbuild:' <<<"$added" | grep -q $'\t' ||
		complain "$patch" "adds tabs, NVIDIA indents with spaces"
}

# In NVIDIA's own files a hook patch adds lines that name gct, and the braces,
# #endif and else around them, and the jump to the function's own clean-up where a
# hook refuses, or its success where a hook leaves nothing to do; it takes away only
# the call that it wraps.
lint_hook_lines() {
	local patch=$1 file hunk sign text
	local -A hunk_lines=() file_lines=()
	while IFS=$'\t' read -r file hunk sign text; do
		case $file in
		common/inc/nv-gct.h | common/inc/nv-gct-uvm.h | nvidia-uvm/uvm_gct.h | *.Kbuild) continue ;;
		esac
		if [ "$sign" = - ]; then
			[[ $text =~ ^[[:space:]]*rmStatus\ =\ rm_ioctl\( ]] ||
				complain "$patch" "removes from $file: $text"
			continue
		fi
		hunk_lines[$file:$hunk]=$((${hunk_lines[$file:$hunk]:-0} + 1))
		file_lines[$file]=$((${file_lines[$file]:-0} + 1))
		[[ $text =~ gct|GCT|rm_ioctl\( || $text =~ ^[[:space:]]*(else|\{|\}|#endif|goto\ fail(ed)?;|return\ NV_OK;)?$ ]] ||
			complain "$patch" "adds to $file a line that does not name gct: $text"
	done < <(changed_lines "$patch")
	local key
	for key in "${!hunk_lines[@]}"; do
		[ "${hunk_lines[$key]}" -le $HUNK_LINES_MAX ] ||
			complain "$patch" "adds ${hunk_lines[$key]} lines in one place of ${key%:*}, at most $HUNK_LINES_MAX"
	done
	for key in "${!file_lines[@]}"; do
		[ "${file_lines[$key]}" -le $FILE_LINES_MAX ] ||
			complain "$patch" "adds ${file_lines[$key]} lines to $key, at most $FILE_LINES_MAX"
	done
}

[ $# -gt 0 ] || { sed -n '4,13s/^# \{0,1\}//p' "$0"; exit 2; }
for patch; do
	lint_header "$patch"
	lint_added_text "$patch"
	case $(basename "$patch") in
	0001-*) ;;
	*) lint_hook_lines "$patch" ;;
	esac
done
[ $complaints -eq 0 ]
