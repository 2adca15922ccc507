"""The system call filter of payloads: what is refused, and why.

A list of refusals, not of permissions: interpreters and runtimes use some 150 calls, other ones in each
version, and a program that is killed for an innocent call is a wrong verdict. What is refused is what
reaches beyond the box (things without a namespace), what reaches its process 1, and the parts of the kernel
with the worst record that no judged program needs.
"""

from __future__ import annotations

import ctypes.util
import errno
import tempfile
from contextlib import suppress
from functools import cache
from typing import Any

_REFUSED: dict[str, str] = {
    "new namespaces, and with them capabilities": (
        "unshare setns mount umount umount2 pivot_root chroot fsopen fsconfig fsmount fspick move_mount open_tree"
        " mount_setattr"
    ),
    "other processes: their memory, limits, scheduling, file descriptors": (
        "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp migrate_pages"
        " move_pages sched_setattr"
    ),
    "keyrings and asynchronous I/O have no namespace, or their own way round filters": (
        "add_key request_key keyctl io_uring_setup io_uring_enter io_uring_register"
    ),
    "kernel surface that no program judged here needs": (
        "bpf perf_event_open userfaultfd kexec_load kexec_file_load init_module finit_module delete_module"
        " open_by_handle_at name_to_handle_at quotactl quotactl_fd acct swapon swapoff reboot syslog lookup_dcookie"
        " nfsservctl vm86 vm86old modify_ldt fanotify_init fanotify_mark inotify_init inotify_init1 iopl ioperm"
        " settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname uselib ustat sysfs _sysctl"
        " vhangup landlock_create_ruleset"
    ),
    "locks on shared read-only files would be a channel between submissions": "flock",
    "memory that no limit of the box counts, or that outlives a run": (
        "memfd_create memfd_secret shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv"
        " msgctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr"
    ),
}
_NAMESPACE_FLAGS = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00000080
)  # fmt: skip
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME."""
_LOCKS = (5, 6, 7, 36, 37, 38, 1024, 1026)
"""fcntl F_GETLK, F_SETLK, F_SETLKW, the open-file-description ones, F_SETLEASE, F_NOTIFY."""
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C


def unavailable() -> str | None:
    """Why there can be no filter on this machine, or None."""
    if ctypes.util.find_library("seccomp") is None:
        return "libseccomp is missing: apt-get install libseccomp2"
    return None


@cache
def program() -> bytes:
    """The filter as the kernel takes it: an array of ``struct sock_filter``. Raises OSError."""
    import pyseccomp as sc  # noqa: PLC0415  (loads libseccomp, which may be missing)

    refuse, absent = sc.ERRNO(errno.EPERM), sc.ERRNO(errno.ENOSYS)
    rules = sc.SyscallFilter(sc.ALLOW)
    rules.set_attr(sc.Attr.ACT_BADARCH, sc.KILL_PROCESS)  # 32-bit calls have other numbers
    with suppress(OSError, ValueError):  # a tree of comparisons in place of a chain; libseccomp 2.5
        rules.set_attr(sc.Attr.CTL_OPTIMIZE, 2)
    for names in _REFUSED.values():
        for name in names.split():
            _add(rules, refuse, name)
    # glibc falls back to clone, whose flags can be looked at; those of clone3 are behind a pointer.
    _add(rules, absent, "clone3")
    for flag in _NAMESPACE_FLAGS:
        _add(rules, refuse, "clone", sc.Arg(0, sc.MASKED_EQ, flag, flag))
    # Vsock reaches the hypervisor, netlink the kernel: both from inside an empty network namespace.
    _add(rules, refuse, "socket", sc.Arg(0, sc.GT, _AF_INET6))
    for family in range(3, _AF_INET6):
        _add(rules, refuse, "socket", sc.Arg(0, sc.EQ, family))
    _add(rules, refuse, "socketpair", sc.Arg(0, sc.NE, _AF_UNIX))
    for command in _LOCKS:
        # The kernel looks at 32 bits of it, so only those may be compared.
        _add(rules, refuse, "fcntl", sc.Arg(1, sc.MASKED_EQ, 0xFFFFFFFF, command))
    for request in (_TIOCSTI, _TIOCLINUX):
        _add(rules, refuse, "ioctl", sc.Arg(1, sc.MASKED_EQ, 0xFFFFFFFF, request))
    # Of other processes, process 1 above all. 0 is the caller itself.
    for name in ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam"):
        _add(rules, refuse, name, sc.Arg(0, sc.NE, 0))
    for name in ("setpriority", "ioprio_set"):
        _add(rules, refuse, name, sc.Arg(1, sc.NE, 0))
    _add(
        rules, refuse, "setpriority", sc.Arg(0, sc.NE, 0)
    )  # of one process, not of a user's or a group's
    _add(rules, refuse, "ioprio_set", sc.Arg(0, sc.NE, 1))
    _add(rules, refuse, "personality", sc.Arg(0, sc.NE, 0))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _add(rules: Any, action: Any, name: str, *arguments: Any) -> None:
    try:
        rules.add_rule(action, name, *arguments)
    except OSError as error:
        if (
            error.errno != errno.EDOM
        ):  # EDOM and EFAULT: a call that this architecture does not have
            raise
    except ValueError:
        pass  # a call that this libseccomp does not know
