"""Launch: the last step before a command runs on an emulated host; a program of its own.

``python -I -S launch.py PARENT NETNS HOSTNAME HOSTS COMMAND...`` enters the network namespace of
the host, takes its name, its ``/etc/hosts`` and its ``/sys/class/net``, asks the kernel to be
killed when its parent dies, and becomes COMMAND. It imports nothing but the standard library, so
that it starts in ten milliseconds; Python offers ``setns`` and ``unshare`` only from 3.12 on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

CANNOT_EXECUTE = 126
NOT_FOUND = 127

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_PR_SET_PDEATHSIG = 1
_CGROUPS = "/sys/fs/cgroup"


def enter(namespace: str, hostname: str, hosts_file: str) -> None:
    """Move this process onto an emulated host.

    Args:
        namespace: path of the network namespace.
        hostname: what ``gethostname`` shall answer.
        hosts_file: what stands in for ``/etc/hosts``.

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    _check(libc.setns(descriptor, _CLONE_NEWNET), f"enter {namespace}")
    os.close(descriptor)
    _check(libc.unshare(_CLONE_NEWUTS | _CLONE_NEWNS), "unshare host name and mounts")
    socket.sethostname(hostname)
    # Slave, not private: a namespace that is unmounted outside must not live on in here.
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "separate the mounts")
    if Path("/etc/hosts").exists():
        hosts = os.fsencode(hosts_file)
        _check(libc.mount(hosts, b"/etc/hosts", None, _MS_BIND, None), "mount /etc/hosts")
    _show_own_interfaces(libc)
    _tune_tcp()
    _let_sends_end()


def _tune_tcp() -> None:
    """Give the host's TCP Linux's own congestion control, and let it keep its window when idle.

    BBR keeps a shaped link up to 5% emptier while short flows come and go, so that a lab would
    measure the machine's setting. And a connection that was idle for 200 ms starts over with ten
    segments: that is over in ten round trips, which between hosts are half a millisecond, but here
    are of processes that wait for a core: 2 MB among four hosts took 20 ms in place of 14. A kernel
    without cubic, or a read-only ``/proc``, keeps its own.
    """
    for name, value in (("congestion_control", "cubic"), ("slow_start_after_idle", "0")):
        with suppress(OSError):
            Path(f"/proc/sys/net/ipv4/tcp_{name}").write_text(value)


def _let_sends_end() -> None:
    """Keep the process that a packet wakes from taking the core of the rank that is sending it.

    Between hosts a packet wakes no process near its sender. Here it does, before the send is over,
    and Gloo sends while it holds a lock for which its own thread then spins until the next tick: a
    round of small messages took 1.1 ms among four hosts on two cores, and takes 0.2 ms like this.
    """
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _show_own_interfaces(libc: ctypes.CDLL) -> None:
    """Mount a ``/sys`` that shows this namespace's links; keep the control groups in it.

    A convenience: netlink shows the right ones anyway, so a refusal (a read-only ``/sys`` in a
    container, say) is no reason to stop.
    """
    try:
        groups = os.open(_CGROUPS, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        groups = -1
    if libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None) == 0 and groups >= 0:
        source = f"/proc/self/fd/{groups}".encode()
        libc.mount(source, _CGROUPS.encode(), None, _MS_BIND | _MS_REC, None)
    if groups >= 0:
        os.close(groups)


def die_with(parent: int) -> None:
    """Ask to be killed when ``parent`` dies; leave at once when it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "follow the parent")
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot {what}: {os.strerror(code)}")


def main(arguments: Sequence[str]) -> int:
    """Become the command; return an exit code, as a shell does, only when that failed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an early Ctrl-C ends it without a traceback
    parent, namespace, hostname, hosts_file, *command = arguments
    try:
        if int(parent):
            die_with(int(parent))
        enter(namespace, hostname, hosts_file)
    except OSError as error:
        print(f"error: {hostname}: {error.strerror}", file=sys.stderr)
        return CANNOT_EXECUTE
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        print(f"error: {hostname}: {command[0]}: command not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"error: {hostname}: {command[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_EXECUTE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
