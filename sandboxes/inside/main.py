"""Process 1 of a box. It is started with the interpreter of the box, and uses nothing but its library.

Theory of operation. The keeper outside (``sandboxes.box``) starts bubblewrap, and this program as the box's
process 1. It keeps a few capabilities inside the box's own user namespace (to mount and unmount its scratch
disk, and to drop the rest), and never runs a line of the submission itself. For every run it

1. mounts a fresh scratch disk of limited size and number of files, and puts the submission's files there;
2. forks. The child takes the file descriptors that the keeper sent (stdin, stdout, stderr, result), drops
   all capabilities, sets its limits and its system call filter, reports, and only then runs the program: in
   this interpreter, already started, if it is Python, by ``execve`` otherwise;
3. waits until the program's first process ends, kills everything else in the box, reaps it, and adds up
   the CPU time of all of it; then it tells the keeper.

What protects it from the programs it starts, although all have one uid: it is process 1 of its pid
namespace, so no signal from inside reaches it; it is not dumpable, so its memory, environment and file
descriptors cannot be opened and nothing can attach to it; the system call filter refuses what could
change another process's limits or scheduling. It holds nothing worth reading: expected outputs never come
here, and a run's input goes from the keeper straight to the program.

It reads nothing that programs write, except the files the keeper asks for, when nothing is alive any more.
What it tells the keeper is a line of numbers.
"""

# mypy: ignore-errors
# (It runs outside of this package, on the standard library's private modules: importing ctypes and json
# would cost as much as starting the interpreter.)

import _socket
import gc
import marshal
import os
import select
import sys
import time

from sandboxes.inside.disk import BUILD, OUT, SCRATCH, WORK, gather, listing, make_folders, put
from sandboxes.inside.kernel import (
    MNT_DETACH,
    MS_NODEV,
    MS_NOSUID,
    MS_RDONLY,
    MS_REMOUNT,
    c,
    drop_bounding,
)
from sandboxes.inside.processes import become_first, kill_all, reap, resident, start, tree, warm_up
from sandboxes.inside.python import run_python, warmed

CONTROL, CODE = 3, 4
MAX_MESSAGE = 1 << 17
BY_FILE = b"@"
TICK_MS = 50
"""How often the CPU time of a running tree is added up."""


def receive(control):
    """(message, file descriptors), or None when the keeper is gone."""
    data, ancillary, flags, _ = control.recvmsg(MAX_MESSAGE, _socket.CMSG_SPACE(64 * 4))
    if not data or flags & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC):
        return None
    fds = []
    for level, kind, payload in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            for at in range(0, len(payload) - 3, 4):
                fds.append(int.from_bytes(payload[at : at + 4], sys.byteorder))
    if data == BY_FILE:  # too large for one message
        body = fds.pop(0)
        data = os.pread(body, os.fstat(body).st_size, 0)
        os.close(body)
    return marshal.loads(data), fds


def answer(control, *words):
    control.send(" ".join(str(w) for w in words).encode())


def watch(control, main, cpu_s, memory):
    """Waits for the first process to end, CPU time or memory (0: not watched) to be spent, or the keeper's word."""
    process = os.pidfd_open(main)
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.register(control.fileno(), select.POLLIN)
    killed = ""
    while not killed:
        events = poll.poll(TICK_MS)
        ready = [fd for fd, _ in events]
        if control.fileno() in ready:
            message = receive(control)
            if message is None:
                os._exit(0)  # and the whole box with it
            if message[0]["op"] == "kill":
                killed = message[0]["why"]
            elif message[0]["op"] == "waited":
                used, waited = tree()
                # Less what it used itself: processes of one program that wait for each other are no load of ours.
                answer(control, "waited", int(max(0.0, waited - used) * 1e6))
        if process in ready:
            break
        if not events and tree()[0] > cpu_s:
            killed = "cpu"
        elif not events and memory and resident() > memory:
            killed = "memory"
    os.close(process)
    kill_all()
    return (killed or "-", *reap(main))


def serve():
    """Process 1's loop. Returns only in a child that is to run Python: its job."""
    os.close(CODE)
    control = _socket.socket(fileno=CONTROL)
    os.set_inheritable(CONTROL, False)
    become_first()
    try:
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
    except OSError:
        pass
    drop_bounding()  # what the children would have to do each
    warm_up()
    gc.freeze()  # the collector of a child would touch, and so copy, all that is shared
    answer(control, "ready")
    files, seccomp = ([], -1), b""
    while True:
        received = receive(control)
        if received is None:
            os._exit(0)
        message, fds = received
        op = message["op"]
        if op == "setup":
            files, seccomp = (message["files"], fds[0]), message["seccomp"]
            os.environ.clear()
            os.environ.update(message["env"])
            sys.path[:] = message["path"]
            c(
                "mount",
                b"build",
                BUILD.encode(),
                b"tmpfs",
                MS_NOSUID | MS_NODEV | MS_RDONLY,
                message["build"],
            )
            for name in message["imports"]:
                try:
                    __import__(name)
                except BaseException:
                    pass
            warmed(*files, message["warm"])
        elif op == "install":
            c(
                "mount",
                b"build",
                BUILD.encode(),
                b"tmpfs",
                MS_REMOUNT | MS_NOSUID | MS_NODEV,
                message["build"],
            )
            put(BUILD, message["files"], fds[0], 0o700)
            c(
                "mount", b"build", BUILD.encode(), b"tmpfs",
                MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_RDONLY, message["build"],
            )  # fmt: skip
            os.close(fds[0])
            answer(control, "installed")
        elif op == "run":
            mounted = False
            try:
                options = f"size={message['disk']},nr_inodes={message['inodes']},mode=755".encode()
                c("mount", b"scratch", SCRATCH.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options)
                mounted = True
                make_folders()
                put(WORK, files[0], files[1])
                if message["files"]:
                    put(WORK, message["files"], fds.pop(0))
                brought = fds.pop(0)
            except OSError as error:
                answer(control, "refused", f"{error.errno} scratch disk: {error}")
                for fd in fds:
                    os.close(fd)
                if mounted:
                    c("umount2", SCRATCH.encode(), MNT_DETACH)
                continue
            began = time.monotonic()
            pid, job = start(lambda *w: answer(control, *w), message, fds, seccomp)
            if pid == 0:
                control.detach()  # its number is the program's now
                return job
            if pid > 0:
                killed, status, used, peak = watch(
                    control, pid, message["cpu_s"], message["memory"]
                )
                took = time.monotonic() - began
                disk = os.statvfs(SCRATCH)
                full = int(disk.f_bavail == 0 or disk.f_favail == 0)
                names = message["fetch"]
                if names is None:
                    names = listing(OUT, 2000)
                index, left_out = gather(
                    WORK if message["fetch"] is not None else OUT, names, brought, message["cap"]
                )
                answer(
                    control, "ended", killed, status, int(used * 1e6), int(took * 1e6), peak, full,
                    index, left_out,
                )  # fmt: skip
            os.close(brought)
            # At once, not before the next run: its pages count against the box's memory.
            c("umount2", SCRATCH.encode(), MNT_DETACH)


def main():
    job = serve()
    # Only the program's own process comes here; it ends as any interpreter does.
    run_python(job)
