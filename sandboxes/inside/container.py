"""Process 1 of a container. It is to the Docker backend what :mod:`sandboxes.inside.main` is to bubblewrap's.

The keeper speaks to it over the container's attached streams, where no file descriptor can be passed and everything a
program reads or writes has to go through. So it holds the programs' pipes itself: it counts and cuts what comes out, and
sends it on in frames. It has no capability, so it cannot mount: the scratch disk is a tmpfs of fixed size, emptied
before every run, on which the disk limit of a run is watched; compiled files are written anew from its own memory before
every run, because a program could change them.

What protects it from the programs, which have its user: it is process 1 of its namespace and not dumpable, the
descriptors of its streams are closed in every child, and the system call filter is the same.
"""

# mypy: ignore-errors

import _socket
import gc
import marshal
import os
import select
import sys
import time

from sandboxes.inside.disk import (
    BUILD,
    OUT,
    SCRATCH,
    WORK,
    listing,
    make_folders,
    open_beneath,
    put,
)
from sandboxes.inside.processes import become_first, kill_all, reap, start, tree, warm_up
from sandboxes.inside.python import run_python, warmed

SHM = "/dev/shm"
TICK_MS = 50
DISK_TICK_MS = 10
"""How often the disk is looked at, which no kernel limit of a run holds."""
CHUNK = 1 << 16
MAX_PENDING = 64 << 20
IN, OUT_FD = 100, 101
MESSAGE, CHANNEL = b"M", b"C"
WORDS, CHANNEL_BACK, FETCHED, BLOB = b"W", b"4", b"F", b"B"
GROUPS = {
    "memory": ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat"),
    "cpu": ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpuacct/cpuacct.usage",
            "/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage"),
    "oom": ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"),
}  # fmt: skip


# ── what the container's own group counts ────────────────────────────────────────────────────────


def counter(name):
    for path in GROUPS[name]:
        if os.path.exists(path):
            return path
    return None


COUNTERS = {name: counter(name) for name in GROUPS}


def table(path):
    found = {}
    with open(path, "rb") as file:
        for line in file.read().split(b"\n"):
            words = line.split()
            if len(words) == 2 and words[1].isdigit():
                found[words[0]] = int(words[1])
    return found


def memory_used():
    """Bytes that programs and tmpfs take, without caches that the kernel can drop; 0 where nothing counts them."""
    if COUNTERS["memory"] is None:
        return 0
    found = table(COUNTERS["memory"])
    if b"total_rss" in found:
        return found[b"total_rss"] + found.get(b"total_shmem", 0)
    return found.get(b"anon", 0) + found.get(b"shmem", 0)


def cpu_used():
    """CPU seconds of the container, or None."""
    path = COUNTERS["cpu"]
    if path is None:
        return None
    if path.endswith("cpu.stat"):
        return table(path)[b"usage_usec"] / 1e6
    with open(path, "rb") as file:
        return int(file.read()) / 1e9


def oom_kills():
    return table(COUNTERS["oom"]).get(b"oom_kill", 0) if COUNTERS["oom"] else 0


# ── the keeper's messages ────────────────────────────────────────────────────────────────────────


class Stream:
    """Frames over the attached streams: four bytes of length, one of kind, then the content."""

    def __init__(self):
        self.buffer = bytearray()

    def fill(self):
        data = os.read(IN, 1 << 20)
        if not data:
            os._exit(0)  # the keeper is gone, and the container with this
        self.buffer += data

    def take(self):
        """(kind, content) of the next whole frame, or None."""
        if len(self.buffer) < 5:
            return None
        size = int.from_bytes(self.buffer[:4], "little")
        if len(self.buffer) < 5 + size:
            return None
        kind, content = bytes(self.buffer[4:5]), bytes(self.buffer[5 : 5 + size])
        del self.buffer[: 5 + size]
        return kind, content

    def wait(self):
        while (frame := self.take()) is None:
            self.fill()
        return frame

    def send(self, kind, content):
        data = len(content).to_bytes(4, "little") + kind + content
        while data:
            data = data[os.write(OUT_FD, data) :]

    def say(self, *words):
        self.send(WORDS, " ".join(str(w) for w in words).encode("utf-8", "replace"))


# ── disks ────────────────────────────────────────────────────────────────────────────────────────


def empty(folder):
    """Removes everything below a folder, however deep and closed it was made. Raises OSError."""
    number = 0
    while True:
        with os.scandir(folder) as entries:
            names = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        if not names:
            return
        for name, is_folder in names:
            path = folder + "/" + name
            if not is_folder:
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            with os.scandir(path) as entries:
                inner = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
            for child, child_is_folder in inner:
                if not child_is_folder:
                    os.unlink(path + "/" + child)
                    continue
                # One level up, so that no path gets longer than the system takes.
                os.chmod(path + "/" + child, 0o700)
                number += 1
                os.rename(path + "/" + child, f"{folder}/.{number}.{os.urandom(4).hex()}")
            os.rmdir(path)


def disk_used():
    used = 0
    for folder in (SCRATCH, SHM, BUILD):
        disk = os.statvfs(folder)
        used += (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    return used


def full():
    disks = [os.statvfs(folder) for folder in (SCRATCH, SHM)]
    return any(d.f_bavail == 0 or d.f_favail == 0 for d in disks)


def files_used():
    disk = os.statvfs(SCRATCH)
    return disk.f_files - disk.f_ffree


def in_memory(content):
    fd = os.memfd_create("files", os.MFD_CLOEXEC)
    while content:
        content = content[os.write(fd, content) :]
    return fd


def gathered(job):
    """(files that were asked for as marshalled pairs, how many did not fit)"""
    names, folder = job["fetch"], WORK
    if names is None:
        folder = OUT
        names = listing(OUT, 2000)
    taken, room, left_out = [], job["cap"], 0
    for name in names:
        fd = open_beneath(folder, name)
        if fd < 0:
            continue
        try:
            size = os.fstat(fd).st_size
            if size > room:
                left_out += 1
                continue
            data = b""
            while len(data) < size and (piece := os.read(fd, min(1 << 20, size - len(data)))):
                data += piece
            room -= size
            taken.append((name, data + bytes(size - len(data))))
        finally:
            os.close(fd)
    return marshal.dumps(taken, 2), left_out


# ── a run ────────────────────────────────────────────────────────────────────────────────────────


class Run:
    """One program and its pipes."""

    def __init__(self, stream, job):
        self.stream = stream
        self.job = job
        self.killed = ""
        self.outputs = {}
        """descriptor -> [kind of its frames, bytes that may still come]"""
        self.feed = -1
        self.unfed = memoryview(job["stdin"])
        self.channel = None
        self.pending = bytearray()
        self.keeper_done = False

    def pipes(self):
        """The program's ends."""
        read, self.feed = os.pipe()
        theirs = [read]
        caps = {b"1": self.job["output"], b"2": self.job["errors"], b"3": self.job["output"]}
        for kind, cap in caps.items():
            if kind == b"3" and not self.job["reports"]:
                continue
            mine, write = os.pipe()
            self.outputs[mine] = [kind, cap]
            theirs.append(write)
        if self.job["channel"]:
            self.channel, other = _socket.socketpair()
            self.channel.setblocking(False)
            theirs.append(other.detach())
        os.set_blocking(self.feed, False)
        return theirs

    def kill(self, why):
        if not self.killed:
            self.killed = why
            kill_all()

    def follow(self, main):
        """Until nothing of the program is left: (status, CPU seconds, peak KiB)."""
        process = os.pidfd_open(main)
        self.poll = poll = select.poll()
        poll.register(IN, select.POLLIN)
        poll.register(process, select.POLLIN)
        for fd in self.outputs:
            poll.register(fd, select.POLLIN)
        poll.register(self.feed, select.POLLOUT)
        if self.channel is not None:
            poll.register(self.channel.fileno(), select.POLLIN)
        tick = time.monotonic() + TICK_MS / 1e3
        ended = None
        while ended is None or self.outputs:
            for fd, events in poll.poll(DISK_TICK_MS):
                if fd == process:
                    poll.unregister(process)
                    kill_all()
                    ended = reap(main)
                elif fd == IN:
                    self.stream.fill()
                    self.obey()
                elif fd in self.outputs:
                    self.pump(fd)
                elif fd == self.feed:
                    self.nourish(events)
                elif self.channel is not None:
                    self.converse(events)
            if ended is None and self.overfull():
                self.kill("disk")
            if ended is None and time.monotonic() > tick:
                tick = time.monotonic() + TICK_MS / 1e3
                self.look()
        os.close(process)
        if self.feed >= 0:
            os.close(self.feed)
        if self.channel is not None:
            self.hang_up()
        return ended

    def look(self):
        """Whether it is over a limit."""
        job = self.job
        if max(tree()[0], self.group_cpu()) > job["cpu_s"]:
            self.kill("cpu")
        elif memory_used() - self.memory_before > job["memory"]:
            self.kill("memory")

    def overfull(self):
        return disk_used() > self.job["disk"] or files_used() > self.job["inodes"]

    def group_cpu(self):
        """CPU seconds of this run by the container's count, without this process's."""
        if self.cpu_before is None:
            return 0.0
        return cpu_used() - self.cpu_before - (time.process_time() - self.own_before) - 0.02

    def obey(self):
        while (frame := self.stream.take()) is not None:
            kind, content = frame
            if kind == CHANNEL:
                if self.channel is None:
                    continue
                if content:
                    self.pending += content
                    self.poll.modify(self.channel.fileno(), select.POLLIN | select.POLLOUT)
                else:
                    self.keeper_done = True
                    self.flush()
                continue
            message = marshal.loads(content)
            if message["op"] == "kill":
                self.kill(message["why"])
            elif message["op"] == "waited":
                used, waited = tree()
                self.stream.say("waited", int(max(0.0, waited - used) * 1e6))

    def pump(self, fd):
        kind, room = self.outputs[fd]
        data = os.read(fd, CHUNK)
        if not data:
            self.poll.unregister(fd)
            os.close(fd)
            del self.outputs[fd]
            return
        if room >= 0:
            # One byte more than it may is the keeper's sign that it was too much.
            self.stream.send(kind, data[: room + 1])
            self.outputs[fd][1] = room - len(data)
        if len(data) > room and kind != b"2":
            self.kill("output")

    def nourish(self, events):
        if len(self.unfed) and not events & (select.POLLERR | select.POLLHUP):
            try:
                self.unfed = self.unfed[os.write(self.feed, self.unfed[:CHUNK]) :]
            except BlockingIOError:
                return
            except OSError:
                self.unfed = self.unfed[:0]
        else:
            self.unfed = self.unfed[:0]
        if not len(self.unfed):
            self.poll.unregister(self.feed)
            os.close(self.feed)
            self.feed = -1

    def converse(self, events):
        if events & select.POLLOUT:
            self.flush()
        if not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return
        try:
            data = self.channel.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.stream.send(CHANNEL_BACK, data)
        else:
            self.hang_up()

    def flush(self):
        try:
            while self.pending:
                del self.pending[: self.channel.send(self.pending[:CHUNK])]
        except BlockingIOError:
            return
        except OSError:
            self.pending.clear()
        self.poll.modify(self.channel.fileno(), select.POLLIN)
        if self.keeper_done:
            try:
                self.channel.shutdown(_socket.SHUT_WR)
            except OSError:
                pass

    def hang_up(self):
        self.poll.unregister(self.channel.fileno())
        self.channel.close()
        self.channel = None
        self.stream.send(CHANNEL_BACK, b"")

    def run(self, given, built, seccomp):
        """In process 1: None. In a child that is to run Python: its job."""
        job = self.job
        try:
            for folder in (SCRATCH, SHM, BUILD):
                empty(folder)
            make_folders()
            for (index, fd), folder, mode in ((given, WORK, 0o600), (built, BUILD, 0o700)):
                put(folder, index, fd, mode)
            if job["files"]:
                index, content = job["files"]
                fd = in_memory(content)
                put(WORK, index, fd)
                os.close(fd)
        except OSError as error:
            self.stream.say("refused", f"{error.errno} scratch disk: {error}")
            return None
        self.memory_before = memory_used() - disk_used()
        self.cpu_before, self.own_before = cpu_used(), time.process_time()
        killed_before = oom_kills()
        began = time.monotonic()
        job["disk"] += disk_used()
        job["inodes"] += files_used()
        pid, job = start(self.stream.say, self.job, self.pipes(), seccomp)
        if pid == 0:
            return job
        if pid < 0:
            for fd in (*self.outputs, self.feed):
                os.close(fd)
            return None
        status, used, peak = self.follow(pid)
        took = time.monotonic() - began
        used = max(used, self.group_cpu())
        if oom_kills() > killed_before:
            self.killed = "memory"
        if self.overfull() and not self.killed:
            self.killed = "disk"
        is_full = full() or disk_used() > self.job["disk"] - CHUNK
        files, left_out = gathered(self.job)
        self.stream.send(FETCHED, files)
        self.stream.say(
            "ended", self.killed or "-", status, int(used * 1e6), int(took * 1e6), peak, int(is_full), left_out,
        )  # fmt: skip
        return None


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────


def looked():
    """What this image has, for whoever makes containers of it."""
    folders = [
        "/usr/lib/python3/dist-packages",
        f"/usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages",
    ]
    return {
        "python": sys.executable,
        "version": sys.version.split()[0],
        "path": [*sys.path, *[f for f in folders if os.path.isdir(f)]],
        "programs": [n for n in os.listdir("/usr/bin") if os.access("/usr/bin/" + n, os.X_OK)],
        "counters": [name for name, path in COUNTERS.items() if path],
        "proc": os.path.exists("/proc/self/stat"),
    }


def serve():
    os.dup2(0, IN, inheritable=False)
    os.dup2(1, OUT_FD, inheritable=False)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    become_first()
    stream = Stream()
    warm_up()
    gc.freeze()
    stream.say("ready")
    nothing = ([], in_memory(b""))
    given = built = nothing
    seccomp = b""
    while True:
        kind, content = stream.wait()
        if kind != MESSAGE:
            continue  # for a program that has ended meanwhile
        message = marshal.loads(content)
        op = message["op"]
        if op == "look":
            stream.send(BLOB, marshal.dumps(looked(), 2))
        elif op == "compile":
            sources = message["sources"]
            compiled = [(n, compile(s, "<" + n + ">", "exec")) for n, s in sources]
            stream.send(BLOB, marshal.dumps(compiled))
        elif op == "setup":
            index, files = message["files"]
            given, seccomp = (index, in_memory(files)), message["seccomp"]
            os.environ.clear()
            os.environ.update(message["env"])
            sys.path[:] = message["path"]
            for name in message["imports"]:
                try:
                    __import__(name)
                except BaseException:
                    pass
            warmed(*given, message["warm"])
        elif op == "install":
            index, files = message["files"]
            built = (index, in_memory(files))
            stream.say("installed")
        elif op == "run":
            job = Run(stream, message).run(given, built, seccomp)
            if job is not None:
                return job


def main():
    job = serve()
    # Only the program's own process comes here; it ends as any interpreter does.
    run_python(job)
