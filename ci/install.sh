#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Usage: install.sh install|uninstall
#
# Installs the user-space mode, its manual pages, completions and systemd units, or removes what
# this script installs. On this machine it also makes gctd's user, which stays. Settings come from
# the environment:
#
#   PREFIX     where to (default: /usr/local)
#   DESTDIR    root of the file system to install into (default: this machine's)
#   PROGRAMS   folder with the programs of `make user` (default: builds them into build/user)
#   UNITDIR    where systemd looks for units (default: PREFIX/lib/systemd/system)
. "$(dirname "$0")/lib.sh"

action=${1:-install}
PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
UNITDIR=${UNITDIR:-$PREFIX/lib/systemd/system}
case $PREFIX in
/*) ;;
*) die "PREFIX=$PREFIX is no absolute path" ;;
esac

library=$PREFIX/lib/gctgroup
man=$PREFIX/share/man
examples=$PREFIX/share/doc/gctgroup-tools/examples

# put MODE SOURCE TARGET: installs one file, or removes it.
put() {
	if [ "$action" = install ]; then
		install -D -m "$1" "$2" "$DESTDIR$3"
	else
		rm -f "$DESTDIR$3"
	fi
}

# put_text MODE SOURCE TARGET: the same for a text that names this prefix.
put_text() {
	local text=$scratch/text
	sed "s,@PREFIX@,$PREFIX,g; s,@LIBRARY@,$library,g" "$2" >"$text"
	put "$1" "$text" "$3"
}

case $action in
install)
	if [ -z "${PROGRAMS:-}" ]; then
		PROGRAMS=$BUILD/user
		"$ROOT/ci/user.sh" "$PROGRAMS"
	fi
	[ -x "$PROGRAMS/gctctl" ] || die "PROGRAMS=$PROGRAMS has no gctctl: run make user"
	;;
uninstall) PROGRAMS=/nonexistent ;;
*) die "usage: install.sh install|uninstall" ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

put 755 "$PROGRAMS/gctctl" "$PREFIX/bin/gctctl"
for program in gctd gct-exporter gct-device-plugin; do
	put 755 "$PROGRAMS/$program" "$PREFIX/sbin/$program"
	put 644 "$ROOT/packaging/man/$program.8" "$man/man8/$program.8"
	put_text 644 "$ROOT/packaging/systemd/$program.service" "$UNITDIR/$program.service"
done
for unit in gctgroup-groups gctgroup-selftest; do
	put_text 644 "$ROOT/packaging/systemd/$unit.service" "$UNITDIR/$unit.service"
done
sysusers=$PREFIX/lib/sysusers.d/gctgroup-tools.conf
put 644 "$ROOT/packaging/systemd/sysusers" "$sysusers"
for hook in prolog epilog task-prolog; do
	put_text 755 "$ROOT/packaging/slurm/$hook" "$library/slurm/$hook"
done
put 644 "$PROGRAMS/libgct_preload.so" "$library/libgct_preload.so"
# What gctctl selftest runs.
put 755 "$PROGRAMS/gct-load" "$library/gct-load"
put 644 "$ROOT/packaging/profiles.toml" "$examples/profiles.toml"
for conf in gctd-limits gct-exporter-{kernel,proc} gct-device-plugin-{kernel,dra,mps}; do
	put_text 644 "$ROOT/packaging/systemd/$conf.conf" "$examples/$conf.conf"
done
for file in alerts.yml dashboard.json; do
	put 644 "$ROOT/userspace/gct-exporter/$file" "$examples/$file"
done

# What gctctl makes itself, from the definition of its command line.
if [ "$action" = install ]; then
	mkdir "$scratch/man1"
	"$PROGRAMS/gctctl" man "$scratch/man1" >/dev/null
	for page in "$scratch"/man1/*; do
		put 644 "$page" "$man/man1/${page##*/}"
	done
else
	for page in "$DESTDIR$man"/man1/gctctl*.1; do
		put 644 - "${page#"$DESTDIR"}"
	done
fi
for shell in bash:share/bash-completion/completions/gctctl zsh:share/zsh/vendor-completions/_gctctl \
	fish:share/fish/vendor_completions.d/gctctl.fish; do
	[ "$action" = uninstall ] ||
		"$PROGRAMS/gctctl" completions "${shell%%:*}" >"$scratch/completions"
	put 644 "$scratch/completions" "$PREFIX/${shell#*:}"
done

if [ "$action" = uninstall ]; then
	for folder in "$library/slurm" "$library" "$examples" "$(dirname "$examples")"; do
		rmdir "$DESTDIR$folder" 2>/dev/null || true
	done
elif [ -z "$DESTDIR" ]; then
	# At boot systemd looks for such files in its own folders alone.
	systemd-sysusers "$sysusers" || note "gctd has no user yet: run systemd-sysusers $sysusers as root"
fi
