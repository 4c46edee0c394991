# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# A program that forks in each way that Python has, beside a thread that asks
# the driver without a pause. Each child uses the GPU and sees the limit.
# guest.rs runs it.

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

LIMITED = 10 << 10


def use(_=None):
    """Uses the GPU. Returns the memory that is seen, in MiB."""
    # A process that hangs in here ends.
    signal.alarm(20)
    driver = ctypes.CDLL(None)
    if driver.fake_open_device() != 0:
        raise SystemExit('the GPU does not open')
    total = driver.fake_memory_total()
    signal.alarm(0)
    return total


def daemonizes():
    """Runs a daemon as launchers do. Returns whether it has used the GPU.

    Its parent has ended, so it is no member of the group by its pid.
    """
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
        os.dup2(writes, 3)
        os.closerange(4, os.sysconf('SC_OPEN_MAX'))
        logs = [os.open('/dev/null', os.O_WRONLY) for _ in range(8)]
        try:
            use()
            for log in logs:
                os.write(log, b'x')
            os.write(3, b'done')
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writes)
    with os.fdopen(reads, 'rb') as answer:
        return answer.read() == b'done'


def main(rounds):
    sys.stdin.readline()
    if use() != LIMITED:
        raise SystemExit('the limit is not seen')
    ends = threading.Event()
    driver = ctypes.CDLL(None)

    def monitor():
        while not ends.is_set():
            driver.fake_memory_total()

    thread = threading.Thread(target=monitor, daemon=True)
    thread.start()
    # A child that hangs ends the test.
    watch = threading.Timer(40 + 20 * rounds, lambda: os._exit(3))
    watch.daemon = True
    watch.start()
    for _ in range(rounds):
        for method in ('fork', 'spawn', 'forkserver'):
            context = multiprocessing.get_context(method)
            with context.Pool(2, maxtasksperchild=2) as pool:
                seen = pool.map(use, range(8), chunksize=1)
                if set(seen) != {LIMITED}:
                    raise SystemExit('%s: %s MiB are seen' % (method, seen))
        for options in ({}, {'close_fds': False}, {'preexec_fn': os.getpid}):
            subprocess.run(['true'], check=True, **options)
        if not daemonizes():
            raise SystemExit('the daemon does not use the GPU')
    ends.set()
    thread.join()
    if driver.fake_memory_total() != LIMITED:
        raise SystemExit('the limit is lost')


if __name__ == '__main__':
    main(int(sys.argv[1]))
