# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs a program as a container runtime does that reads CDI specs. The container has pid, mount,
# IPC and UTS namespaces, a cgroup, and no more capabilities than podman gives. It sees the host's
# files read-only, but neither /run nor /tmp, and of /dev only what its device has. SIGTERM stops it.
#
# usage: container.py --id ID --cgroup DIR --specs DIR --device KIND=NAME
#            [--mount FROM:TO].. -- PROGRAM [ARGUMENT..]
import argparse
import ctypes
import glob
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

libc = ctypes.CDLL(None, use_errno=True)
# From linux/mount.h, linux/sched.h, linux/prctl.h and the tables of system calls.
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18)
OPTIONS = {"ro": MS_RDONLY, "nosuid": MS_NOSUID, "nodev": MS_NODEV, "noexec": MS_NOEXEC}
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x4000000, 0x8000000, 0x20000000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
# chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot,
# setfcap.
CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31}
# Those of the kernel's that no spec names.
NODES = ("null", "zero", "full", "random", "urandom", "tty")
# The container's list of libraries for the loader, in a bundle.
PRELOADS = "/rootfs/etc/ld.so.preload"
OWN = ("/proc", "/sys", "/dev", "/run", "/tmp")


def call(function, *arguments):
    """Calls a function of libc; raises its error."""
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(arguments))


def mount(source, target, kind=None, flags=0):
    kind = kind.encode() if kind else None
    call(libc.mount, source.encode(), target.encode(), kind, ctypes.c_ulong(flags), None)


def bind(source, target, flags=0):
    """Shows a file or a directory of the host at a place that exists."""
    mount(source, target, flags=MS_BIND)
    if flags:
        mount(source, target, flags=MS_BIND | MS_REMOUNT | flags)


def place(source, target):
    """Makes the place for a mount: a directory, or an empty file."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "a").close()


def mirror(path, root, places):
    """Shows a directory of the host below `root`. It is built anew where one of the places lies in
    it, since nothing can be mounted where the host has nothing."""
    for entry in os.scandir(path):
        here, there = entry.path, root + entry.path
        if here in OWN or here in places:
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(here), there)
        elif entry.is_dir() and any(p.startswith(here + "/") for p in places):
            os.mkdir(there)
            mirror(here, root, places)
        elif entry.is_dir() or entry.is_file():
            place(here, there)
            mount(here, there, flags=MS_BIND | MS_REC)
            # struct mount_attr: to set, to clear, propagation, user namespace.
            attributes = struct.pack("=4Q", MS_RDONLY, 0, 0, 0)
            call(libc.syscall, SYS_MOUNT_SETATTR, AT_FDCWD, there.encode(), AT_RECURSIVE, attributes,
                 ctypes.c_size_t(len(attributes)))


def build_root(root, edits, mounts):
    """Makes the container's file system, and enters it."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs")
    mirror("/", root, [target for _, target, _ in mounts])
    for own in OWN:
        os.makedirs(root + own)
    mount("proc", root + "/proc", "proc")
    bind("/sys", root + "/sys", MS_RDONLY)
    os.makedirs(root + "/dev/shm")
    nodes = [("/dev/" + name, "/dev/" + name) for name in NODES]
    nodes += [(node.get("hostPath", node["path"]), node["path"]) for node in edits["deviceNodes"]]
    for source, target in nodes:
        place(source, root + target)
        bind(source, root + target)
    for source, target, flags in mounts:
        place(source, root + target)
        bind(source, root + target, flags)
    old = root + "/old"
    os.mkdir(old)
    call(libc.syscall, SYS_PIVOT_ROOT, root.encode(), old.encode())
    os.chdir("/")
    call(libc.umount2, b"/old", MNT_DETACH)
    os.rmdir("/old")


def drop_capabilities():
    """Program files get no capability that is not in the bounding set."""
    with open("/proc/sys/kernel/cap_last_cap") as last:
        for capability in set(range(int(last.read()) + 1)) - CAPABILITIES:
            call(libc.prctl, PR_CAPBSET_DROP, capability, 0, 0, 0)


def edits_of(specs, device):
    """Returns what the specs say of a device: of itself, and of all of its kind."""
    kind, name = device.split("=")
    found = {"deviceNodes": [], "mounts": [], "env": [], "hooks": []}
    for path in glob.glob(os.path.join(specs, "*.json")):
        with open(path) as file:
            spec = json.load(file)
        devices = [d for d in spec["devices"] if spec["kind"] == kind and d["name"] == name]
        for part in [spec] * len(devices) + devices:
            for key, value in part["containerEdits"].items():
                found[key] += value
    if not found["hooks"]:
        sys.exit(f"container: {specs} has no device {device}")
    return found


def write_bundle(bundle, edits):
    """Writes what the hooks read of a container, and the one file of it that they write."""
    os.makedirs(bundle + "/rootfs/etc")
    open(bundle + PRELOADS, "w").close()
    nodes = [(node["path"], os.stat(node.get("hostPath", node["path"])).st_rdev)
             for node in edits["deviceNodes"]]
    config = {"root": {"path": "rootfs"},
              "hooks": {hook["hookName"]: [] for hook in edits["hooks"]},
              "linux": {"devices": [{"path": path, "type": "c", "major": os.major(device),
                                     "minor": os.minor(device)} for path, device in nodes]}}
    for hook in edits["hooks"]:
        config["hooks"][hook["hookName"]].append({"path": hook["path"], "args": hook["args"]})
    with open(bundle + "/config.json", "w") as file:
        json.dump(config, file)


def run_hooks(edits, stage, state):
    """Runs the hooks of a stage. Returns whether all of them succeeded."""
    hooks = [hook for hook in edits["hooks"] if hook["hookName"] == stage]
    done = [subprocess.run([hook["path"], *hook["args"][1:]], input=json.dumps(state).encode(),
                           timeout=hook["timeout"], env={}).returncode for hook in hooks]
    return not any(done)


def contain(options, edits, bundle, ready, go):
    """The container's side: makes namespaces, tells its first process, and waits for it."""
    call(libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with open(os.path.join(options.cgroup, "cgroup.procs"), "w") as procs:
        procs.write("0")
    call(libc.unshare, CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
    first = os.fork()
    if first:
        os.write(ready, f"{first}\n".encode())
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    call(libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    mounts = [(m["hostPath"], m["containerPath"],
               sum(OPTIONS.get(option, 0) for option in m["options"])) for m in edits["mounts"]]
    mounts += [(*pair.split(":"), 0) for pair in options.mount]
    mounts.append((bundle + PRELOADS, "/etc/ld.so.preload", MS_RDONLY))
    build_root(bundle + "/mount", edits, mounts)
    if not os.read(go, 1):
        return 1
    drop_capabilities()
    environment = {"PATH": "/gct:" + os.environ["PATH"], "HOME": "/tmp"}
    # By which a machine may find the driver's libraries.
    if "LD_LIBRARY_PATH" in os.environ:
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    environment.update(entry.split("=", 1) for entry in edits["env"])
    os.execvpe(options.program[0], options.program, environment)


def main():
    parser = argparse.ArgumentParser()
    for option in ("--id", "--cgroup", "--specs", "--device"):
        parser.add_argument(option, required=True)
    parser.add_argument("--mount", action="append", default=[], metavar="FROM:TO")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    edits = edits_of(options.specs, options.device)
    os.makedirs(options.cgroup)
    bundle = tempfile.mkdtemp()
    os.mkdir(bundle + "/mount")
    write_bundle(bundle, edits)
    (pids, ready), (go, start) = os.pipe(), os.pipe()
    outer = os.fork()
    if outer == 0:
        os.close(start)
        os._exit(contain(options, edits, bundle, ready, go))
    os.close(ready)
    os.close(go)
    state = {"ociVersion": "1.0.2", "id": options.id, "status": "creating", "bundle": bundle,
             "pid": int(os.fdopen(pids).readline())}
    signal.signal(signal.SIGTERM, lambda *_: os.kill(state["pid"], signal.SIGKILL))
    if run_hooks(edits, "createRuntime", state):
        os.write(start, b"1")
    os.close(start)
    ended = os.waitstatus_to_exitcode(os.waitpid(outer, 0)[1])
    run_hooks(edits, "poststop", {**state, "status": "stopped", "pid": 0})
    os.rmdir(options.cgroup)
    shutil.rmtree(bundle)
    sys.exit(ended)


main()
