#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Writes the patch series of one driver version from the one series of all, and takes one back.

  ci/series.py versions                      prints the versions that BASE describes
  ci/series.py write VERSION DIR [SOURCE]    writes the plain series of VERSION into DIR
  ci/series.py import VERSION DIR            takes patches of git format-patch for VERSION

A patch of open-gpu-kernel-modules-patches has one message, and the hunks of all versions. A hunk has
no line numbers. It begins with "@@", its versions if not all have it, and the function around it:

  @@ {version < 570} nv_pci_remove(struct pci_dev *pci_dev)
  @@ {570 <= version < 595} nv_pci_remove_helper(struct pci_dev *pci_dev)

A new file has no hunks: it is in headers/. SOURCE is the driver's kernel-open. With it, the old text
of each hunk must stand in its file exactly once (at the end, if no context follows it), or the hunk
is refused; line numbers are exact. Without it they only count up, so patch and git search the place.
"""
import difflib
import pathlib
import re
import sys

SERIES = pathlib.Path(__file__).resolve().parent.parent / "open-gpu-kernel-modules-patches"
STORED = re.compile(r"@@(?: \{(?:(\S+) <= )?version(?: < (\S+))?\})?(?: (.*))?$")
PLAIN = re.compile(r"@@ -\S+ \+\S+ @@()()(?: (.*))?$")


class Hunk:
    def __init__(self, low, high, heading, body):
        self.low, self.high, self.heading, self.body = low, high, heading, body

    def is_for(self, version):
        return (not self.low or key(self.low) <= key(version)) and (not self.high or key(version) < key(self.high))

    def side(self, signs):
        return [line[1:] for line in self.body if line[0] in signs]


def die(*words):
    sys.exit("error: " + " ".join(words))


def key(version):
    return list(map(int, version.split(".")))


def versions():
    return sorted(re.findall(r"(?m)^\[(\S+)\]$", (SERIES / "BASE").read_text()), key=key)


def patches(folder):
    return sorted(folder.glob("[0-9]*.patch"))


def lines_of(file):
    return file.read_text().removesuffix("\n").split("\n")


def parse(file, form):
    """Returns the message, and the hunks of each file, or None for a file that is in headers/."""
    message, *sections = re.split(r"(?m)^(?=diff --git )", re.sub(r"\n-- \n.*", "\n", file.read_text(), flags=re.S))
    files = {}
    for section in sections:
        first, *lines = section.rstrip("\n").split("\n")
        path = first.split(" b/")[1]
        if path in files:
            die(file.name, path, "has two sections")
        hunks = files[path] = []
        for line in lines:
            if line.startswith("@@"):
                found = form.match(line)
                if not found or (found[3] or "").startswith("{"):
                    die(file.name, path, "cannot read", line)
                hunks.append(Hunk(found[1], found[2], found[3] or "", []))
            elif hunks and line.startswith(("+", "-", " ")):
                hunks[-1].body.append(line)
            elif hunks:
                die(file.name, path, "a line of a hunk begins with ' ', '+' or '-', and not:", repr(line))
        if not hunks:
            files[path] = None if "new file mode 100644" in lines else die(file.name, path, "has no hunks")
    return message, files


def place(where, hunk, lines, first):
    """Returns the index of the only place where the hunk fits."""
    old = hunk.side(" -")
    fits = [at for at in range(len(lines) - len(old) + 1) if lines[at:at + len(old)] == old]
    before, after = (next(n for n, line in enumerate(way) if line[0] != " ") for way in (hunk.body, hunk.body[::-1]))
    if before != after:
        fits = [at for at in fits if at == (0 if before < after else len(lines) - len(old))]
    if len(fits) != 1 or fits[0] < first:
        die(f"{where}: a hunk fits in {len(fits)} places, not in one after the last hunk:\n" + "\n".join(hunk.body))
    return fits[0]


def plain_file(where, path, hunks, lines):
    """Returns a file's part of a plain patch. Changes the lines of the file, if they are known."""
    out, delta, last = [f"diff --git a/{path} b/{path}", f"--- a/{path}", f"+++ b/{path}"], 0, 0
    for hunk in hunks:
        old, new = hunk.side(" -"), hunk.side(" +")
        at = place(f"{where}: {path}", hunk, lines, last + delta) - delta if lines else last + 1
        out.append(f"@@ -{at + 1},{len(old)} +{at + 1 + delta},{len(new)} @@ {hunk.heading}".rstrip())
        out += hunk.body
        if lines:
            lines[at + delta:at + delta + len(old)] = new
        last, delta = at + len(old), delta + len(new) - len(old)
    return out


def write_series(version, folder, source=None):
    if folder.resolve() == SERIES:
        die("the plain series would replace the one of all versions")
    names, tree = [patch.name for patch in patches(SERIES)], {}
    folder.mkdir(parents=True, exist_ok=True)
    for old in patches(folder):
        old.unlink()
    for number, name in enumerate(names, 1):
        message, files = parse(SERIES / name, STORED)
        message = message.replace("Subject: [PATCH]", f"Subject: [PATCH {number:02}/{len(names):02}]", 1)
        out = []
        for path, hunks in files.items():
            ours = [hunk for hunk in hunks or [] if hunk.is_for(version)]
            if hunks is None:
                tree[path] = lines_of(SERIES / "headers" / path)
                out += [f"diff --git a/{path} b/{path}", "new file mode 100644", "--- /dev/null", f"+++ b/{path}"]
                out += [f"@@ -0,0 +1,{len(tree[path])} @@"] + ["+" + line for line in tree[path]]
            elif ours:
                if source and path not in tree:
                    tree[path] = lines_of(source / path) if (source / path).exists() else die("the driver has no", path)
                out += plain_file(name, path, ours, tree.get(path))
        if not out:
            die(name, "has no hunk for", version)
        (folder / name).write_text("\n".join([f"From {'0' * 40} Mon Sep 17 00:00:00 2001", message] + out) + "\n")
    (folder / "series").write_text("".join(name + "\n" for name in names))


def bound(version, known):
    """Returns the first number of a version's branch, or the version where its branch has older ones."""
    branch = version.split(".")[0]
    return version if any(old.split(".")[0] == branch for old in known[:known.index(version)]) else branch


def merge(lists, known):
    """Returns one list of hunks for all versions from that of each version."""
    merged = []  # of a hunk and its versions
    for version in known:
        ours, result = lists[version], []
        same = difflib.SequenceMatcher(None, [tuple(h.body) for h, _ in merged], [tuple(h.body) for h in ours], False)
        for kind, a, b, c, d in same.get_opcodes():
            result += [(h, v + [version] if kind == "equal" else v) for h, v in merged[a:b]]
            result += [] if kind == "equal" else [(h, [version]) for h in ours[c:d]]
        merged = result
    hunks = []
    for hunk, having in merged:
        for before, version in zip([None] + known, known):
            if version in having and before not in having:
                hunks.append(Hunk(before and bound(version, known), None, hunk.heading, hunk.body))
            elif version not in having and before in having:
                hunks[-1].high = bound(version, known)
    return hunks


def stored_text(message, files):
    out = [message.rstrip("\n")]
    for path, hunks in sorted(files.items()):
        out += [f"diff --git a/{path} b/{path}"] + (["new file mode 100644"] if hunks is None else [])
        for hunk in hunks or []:
            low, high = f"{hunk.low} <= " if hunk.low else "", f" < {hunk.high}" if hunk.high else ""
            out.append(" ".join(["@@"] + [f"{{{low}version{high}}}"] * bool(low + high) + [hunk.heading]).rstrip())
            out += hunk.body
    return "\n".join(out) + "\n"


def import_series(version, folder):
    known, news = versions(), patches(folder)
    before = {patch.name[5:]: parse(patch, STORED)[1] for patch in patches(SERIES)}  # without the number
    if gone := set(before) - {new.name[5:] for new in news}:
        die("remove these from the series, or rename them there, first:", *sorted(gone))
    read = [(new, *parse(new, PLAIN)) for new in news]  # before anything of the series goes
    for old in patches(SERIES):
        old.unlink()
    for new, message, ours in read:
        message = re.sub(r"^From .*\n", "", message[:message.index("\n---\n") + 5])
        message = re.sub(r"\[PATCH[^]]*\] (.*(?:\n .*)*)", lambda m: "[PATCH] " + m[1].replace("\n", ""), message, count=1)
        stored = SERIES / new.name
        files = before.get(new.name[5:], dict(ours))
        for path in set(files) | set(ours):
            mine, all_hunks = ours.get(path, []), files.get(path, [])
            if all_hunks is None or mine and not any(hunk.side(" -") for hunk in mine):
                header, files[path] = SERIES / "headers" / path, None
                header.parent.mkdir(parents=True, exist_ok=True)
                header.write_text("\n".join(mine[0].side("+")) + "\n")
                continue
            lists = {v: [hunk for hunk in all_hunks if hunk.is_for(v)] for v in known}
            if [hunk.body for hunk in lists[version]] != [hunk.body for hunk in mine]:
                files[path] = merge({**lists, version: mine}, known)
        stored.write_text(stored_text(message, {path: hunks for path, hunks in files.items() if hunks != []}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["versions"]:
            print("\n".join(versions()))
        case ["write", version, folder, *source] if len(source) < 2:
            write_series(version, pathlib.Path(folder), *map(pathlib.Path, source))
        case ["import", version, folder]:
            import_series(version, pathlib.Path(folder))
        case _:
            sys.exit(__doc__)
