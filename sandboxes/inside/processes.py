"""The processes of a box: what they use, how they end, and what is taken from one before it is the program's."""

# mypy: ignore-errors

import _signal
import _sitebuiltins
import os
import resource
import sys

from sandboxes.inside.disk import WORK
from sandboxes.inside.kernel import (
    PR_SET_DUMPABLE,
    c,
    drop_capabilities,
    filter_calls,
    undumpable,
)

PAGE = os.sysconf("SC_PAGE_SIZE")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def tree():
    """Of everything alive in the box but process 1: (CPU seconds, seconds for which the one that waited
    longest was ready without a core).
    """
    used = waited = 0.0
    try:
        names = os.listdir("/proc")
    except OSError:
        return 0.0, 0.0
    for name in names:
        if not name.isdigit() or name == "1":
            continue
        try:
            with open("/proc/" + name + "/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            used += sum(int(f) for f in fields[11:15]) / CLOCK_TICKS
            with open("/proc/" + name + "/schedstat", "rb") as file:
                waited = max(waited, int(file.read().split()[1]) / 1e9)
        except (OSError, IndexError, ValueError):
            continue
    return used, waited


def resident():
    """Bytes of memory of everything in the box but process 1, without what is mapped from files."""
    used = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open("/proc/" + name + "/statm", "rb") as file:
                    fields = file.read().split()
                used += (int(fields[1]) - int(fields[2])) * PAGE
            except (OSError, IndexError, ValueError):
                continue
    return used


def kill_all():
    try:
        os.kill(-1, _signal.SIGKILL)
    except ProcessLookupError:
        pass


def reap(main):
    """Reaps until nothing is left: (status of main, CPU seconds, peak KiB of the largest process)."""
    status, used, peak = 0, 0.0, 0
    while True:
        try:
            pid, code, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return status, used, peak
        except InterruptedError:
            continue
        used += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss)
        if pid == main:
            status = code
        kill_all()


def confine(job, seccomp):
    """Takes everything from this process that the program shall not have."""
    for name, value in job["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        if isinstance(value, tuple):
            value, hard_value = value
        else:
            hard_value = value
        if hard != resource.RLIM_INFINITY:
            value, hard_value = min(value, hard), min(hard_value, hard)
        resource.setrlimit(kind, (value, hard_value))
    drop_capabilities()
    c("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        # The kernel shall take the program first when memory runs out, not process 1.
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"1000")
        os.close(fd)
    except OSError:
        pass
    filter_calls(seccomp)


def child(job, fds, seccomp):
    """In the forked process: until the program, or forever. Returns the job where it is Python."""
    report = fds[-1]
    try:
        os.setsid()
        for target, fd in enumerate(fds[:-1]):
            os.dup2(fd, target + 64)
        os.dup2(report, 63, inheritable=False)
        for target in range(len(fds) - 1):
            os.dup2(target + 64, target)
        os.closerange(len(fds) - 1, 63)
        os.closerange(64, 4096)
        os.umask(0o077)
        os.chdir(WORK)
        confine(job, seccomp)
        if job["argv"] is not None:
            # What follows closes the descriptor if it succeeds: the keeper's sign that the program runs.
            try:
                os.execve(job["argv"][0], job["argv"], os.environ)
            except OSError as error:
                os.write(63, f"X{error.errno} {error}".encode()[:500])
                os._exit(126)
        os.write(63, b"S")
        os.close(63)
        return job
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else 0
        text = f"E{number} {type(error).__name__}: {error}"
        os.write(63, text.encode("utf-8", "replace")[:500])
        os._exit(127)


def start(tell, job, fds, seccomp):
    """Forks the program; (pid, None) here, (0, job) in a child that is to run Python."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        return 0, child(job, [*fds, write], seccomp)
    os.close(write)
    for fd in fds:
        os.close(fd)
    text = b""
    while data := os.read(read, 600):
        text += data
        if text == b"S":
            break
    os.close(read)
    if text not in (b"", b"S"):
        kill_all()
        reap(pid)
        tell("unexecutable" if text[:1] == b"X" else "refused", text[1:].decode("utf-8", "replace"))
        return -1, None
    tell("started")
    return pid, None


def become_first():
    """What process 1 does before anything: no signal and no look from inside reaches it."""
    for number in (_signal.SIGINT, _signal.SIGPIPE):
        _signal.signal(number, _signal.SIG_DFL)  # one that has a handler could be sent to process 1
    undumpable()


def warm_up():
    """What every child would have to do, done once."""
    compile("pass", "warm", "exec")  # the first use of the compiler takes a millisecond
    builtins = sys.modules["builtins"]
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
    builtins.help = _sitebuiltins._Helper()
