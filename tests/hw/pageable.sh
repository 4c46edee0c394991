#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: pageable.sh PROGRAMS [SECONDS [WAIT]]
#
# Checks on a GPU that programs go on beyond gmem.limit when gmem.pageable is 1, and measures a
# training and an inference natively, refused, and pageable at 40, 60, 90, 100 and 120% of the
# memory that they want, one limit after the other. At each it prints what is on the GPU while that
# changes, waits until that and the time of a step have settled, for WAIT seconds (10) at most, and
# then measures for SECONDS (3). Ends with a table in Markdown. PROGRAMS is the folder that
# ci/user.sh has made. All takes some three minutes; WAIT 30 shows where slow exchanges end.
. "$(dirname "$0")/lib.sh"
here=$(dirname "$(realpath "$0")")
seconds=${2:-3}
wait=${3:-10}
parts="40 60 90 100 120"
table=

mib() { echo $(($(get web/0 "$1") >> 20)); }
# begin KIND: starts the program in the group. Its first answer is `ready` or `out of memory`.
begin() {
	talk run --group web -- python3 "$here/src/pageable.py" "$1"
	hear
}
within() { [ "$(mib gmem.current)" -le "$limit" ]; }
is_empty() { [ "$(mib gmem.current)" = 0 ] && [ "$(mib hmem.current)" = 0 ]; }
say() { echo "        $1: $2 ms a step; GPU $(mib gmem.current) MiB of $limit, host $(mib hmem.current) MiB"; }

# near BYTES: whether so much is on the GPU, but for pieces that do not fit and what stays free.
near() { [ $(($(mib gmem.current) + 64)) -ge "$1" ]; }
# Prints for how many seconds nothing must change. What no launch is seen to use comes after 6.
quiet() { if near "$limit" || near "$wants"; then echo 3; else echo 8; fi; }
# settle: steps until nothing changes any more. Sets `settled` to the seconds until the last change.
settle() {
	local begun=$SECONDS changed=0 now=0 was best=0 ms
	was=$(mib gmem.current)
	printf '        %s at %s%%, MiB on the GPU: 0 s %s' "$kind" "$part" "$was"
	while settled=$changed && [ $((now - changed)) -lt "$(quiet)" ]; do
		if [ $now -ge "$wait" ]; then
			settled="more than $now"
			break
		fi
		ms=$(ask 1) now=$((SECONDS - begun))
		# Tenths of a millisecond.
		ms=${ms% *} ms=${ms/./}
		if [ "$(mib gmem.current)" != "$was" ]; then
			was=$(mib gmem.current) changed=$now
			printf ', %s s %s' $now "$was"
		fi
		if [ $best = 0 ] || [ $((ms * 100)) -lt $((best * 95)) ]; then
			[ $best = 0 ] || changed=$now
			best=$ms
		fi
	done
	echo "; settled after $settled s"
}
row() { table+="|$(printf ' %s |' "$@")"$'\n'; }

start_daemon || exit 1
ctl create web >/dev/null
for kind in infer train; do
	limit=max
	set_ web/0 gmem.limit=max gmem.pageable=0
	begin $kind
	check "$kind runs natively" [ "$answer" = ready ]
	native=$(ask "$seconds") value=$(ask value) wants=$(mib gmem.current)
	say "$kind natively" "$native"
	end
	times=("$kind, ms a step" "${native% *}") places=("MiB on the GPU" "$wants") waits=("s until settled" "")
	check "its memory is free" eventually is_empty

	limit=$((wants * 60 / 100))
	set_ web/0 gmem.limit=${limit}M
	begin $kind
	check "$kind at 60% is refused" [ "$answer" = "out of memory" ]
	end
	set_ web/0 gmem.pageable=1 hmem.limit=1G
	begin $kind
	check "$kind beyond both limits is refused" [ "$answer" = "out of memory" ]
	end
	check "its memory is free" eventually is_empty
	set_ web/0 hmem.limit=max

	limit=$((wants * 40 / 100))
	set_ web/0 gmem.limit=${limit}M
	begin $kind
	check "$kind at 40% begins" [ "$answer" = ready ]
	for part in $parts; do
		limit=$((wants * part / 100))
		set_ web/0 gmem.limit=${limit}M
		settle
		step=$(ask "$seconds")
		say "$kind at $part%" "$step"
		check "within the limit" within
		times+=("${step% *}") places+=("$(mib gmem.current) of $limit") waits+=("$settled")
	done
	row "${times[@]}"
	row "${places[@]}"
	row "${waits[@]}"
	[ $kind = train ] || check "the results are the same bits" [ "$(ask value)" = "$value" ]
	end
	check "its memory is free" eventually is_empty
done
echo
echo "| $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1) | natively |$(printf ' %s%% |' $parts)"
echo "|---|---|$(printf -- '---|%.0s' $parts)"
echo "$table"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
