"""Programs that attack the box they run in: (what is tried, source, limits, what may come of it).

A program prints HOLE where it got what it must not have. Besides that, its verdict must be one of those
listed. Needs only the standard library and ``sandboxes``, so that it also runs where the tests' own
interpreter is out of reach for an unprivileged user.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandboxes.program import Limits, Verdict

V = Verdict
FAST = Limits(cpu_s=1.0, wall_s=3.0, memory_mb=128, pids=24, output_kb=256, disk_mb=16, files=256)
ANY = frozenset(Verdict) - {V.SANDBOX_FAILED}
_TRY = """
import os, sys, ctypes, socket, signal
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, action):
    try:
        got = action()
    except (OSError, ValueError, AttributeError, MemoryError):
        return
    if got is not None and got is not False:
        print("HOLE", what, repr(got)[:200])
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return None if result < 0 else ("result", result)
"""


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    source: str
    verdicts: frozenset[Verdict] = frozenset({V.OK})
    limits: Limits = FAST
    language: str = "python"
    stdin: bytes = b""
    image: bool = True
    """Whether it fails in a container as well, whose image has an /etc and a /var of its own."""


def tries(name: str, body: str, **more: object) -> Attack:
    return Attack(name, _TRY + body, **more)  # type: ignore[arg-type]


ATTACKS = [
    # ── process 1 and the host's secrets ─────────────────────────────────────────────────────────
    tries("reads process 1", """
for name in ("environ", "mem", "maps", "auxv", "syscall", "stack", "pagemap", "io"):
    attempt(name, lambda: open("/proc/1/" + name, "rb").read(1) or "opened")
attempt("fd", lambda: os.listdir("/proc/1/fd") or "listed")
attempt("cwd", lambda: os.readlink("/proc/1/cwd"))
attempt("root", lambda: os.listdir("/proc/1/root/"))
"""),
    tries("attaches to process 1", """
for request in (16, 0x4206):
    attempt("ptrace", lambda: True if libc.ptrace(request, 1, 0, 0) == 0 else None)
attempt("pidfd_getfd", lambda: call(438, os.pidfd_open(1), 3, 0))
attempt("vm_readv", lambda: call(310, 1, 0, 0, 0, 0, 0))
"""),
    tries("changes process 1's limits and scheduling", """
import resource
attempt("prlimit", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)) or "set")
attempt("affinity", lambda: os.sched_setaffinity(1, {0}) or "set")
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19) or "set")
attempt("user", lambda: os.setpriority(os.PRIO_USER, 0, 19) or "set")
attempt("ioprio", lambda: call(251, 1, 1, 7))
"""),
    Attack("kills process 1 in every way", """
import os, signal
for number in range(1, 65):
    if number not in (signal.SIGCHLD,):
        try: os.kill(1, number)
        except OSError: pass
print("alive")
"""),
    Attack("kills everybody", "import os\nos.kill(-1, 9)\nos.kill(os.getpid(), 9)",
           frozenset({V.OK, V.RUNTIME_ERROR})),
    tries("looks for secrets of the host", """
text = " ".join(os.environ) + " ".join(os.environ.values())
for name in os.listdir("/proc"):
    if name.isdigit():
        for file in ("environ", "cmdline"):
            try: text += open(f"/proc/{name}/{file}").read()
            except OSError: pass
if "SECRET" in text: print("HOLE", text)
for path in ("/etc/passwd", "/etc/shadow", "/etc/hostname", "/root", "/home", "/var", "/opt", "/srv", "/mnt",
             "/run", "/sys", "/boot", "/usr/local", "/dev/sda", "/dev/vda", "/dev/kmsg", "/dev/mem", "/dev/pts",
             "/dev/tty", "/proc/kcore", "/proc/kmsg"):
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1) or "opened")
""", image=False),
    tries("looks for the host from a container", """
text = " ".join(os.environ) + " ".join(os.environ.values())
for name in os.listdir("/proc"):
    if name.isdigit():
        for file in ("environ", "cmdline"):
            try: text += open(f"/proc/{name}/{file}").read()
            except OSError: pass
if "SECRET" in text: print("HOLE", text)
for path in ("/etc/shadow", "/root", "/boot/x", "/dev/sda", "/dev/vda", "/dev/kmsg", "/dev/mem", "/dev/tty",
             "/proc/kcore/x", "/proc/kmsg", "/var/run/docker.sock", "/run/docker.sock"):
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1) or "opened")
for path in ("/sys/fs/cgroup", "/sys/kernel", "/var/tmp", "/var/lib", "/run", "/home", "/opt"):
    attempt(path, lambda: open(path + "/x", "w").close() or "written")
"""),
    tries("writes what was compiled", """
attempt("/build", lambda: open("/build/x", "w").close() or "written")
""", image=False),
    tries("is root somewhere", """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/drop_caches",
             "/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger", "/proc/1/oom_score_adj"):
    attempt(path, lambda: open(path, "w").close() or "opened to write")
attempt("uid_map", lambda: open("/proc/self/uid_map", "w", buffering=1).write("0 0 1\\n") and "mapped")
attempt("setuid", lambda: os.setuid(0) or "root")
attempt("setgroups", lambda: os.setgroups([0]) or "root")
if int(open("/proc/self/status").read().split("CapEff:")[1].split()[0], 16): print("HOLE capabilities")
if "NoNewPrivs:\\t1" not in open("/proc/self/status").read(): print("HOLE new privileges")
if os.path.exists("/usr/bin/su"):
    attempt("chmod", lambda: os.chmod("/usr/bin/su", 0o777) or "done")
"""),
    tries("writes outside its disk", """
for path in ("/x", "/usr/x", "/usr/lib/x", "/usr/bin/x", "/bin/x", "/etc/x", "/dev/x", "/proc/x",
             "/scratch/../x"):
    attempt(path, lambda: open(path, "w").close() or "written")
attempt("link", lambda: os.link("/usr/bin/env", "/scratch/tmp/env") or "linked")
attempt("utime", lambda: os.utime("/usr/bin/env") or "done")
"""),
    # ── kernel ───────────────────────────────────────────────────────────────────────────────────
    tries("makes namespaces", """
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    attempt("unshare", lambda: True if libc.unshare(flag) == 0 else None)
    attempt("clone", lambda: call(56, flag | 17, 0, 0, 0, 0))
attempt("clone3", lambda: call(435, ctypes.create_string_buffer(88), 88))
attempt("mount", lambda: True if libc.mount(b"t", b"/scratch/tmp", b"tmpfs", 0, None) == 0 else None)
attempt("umount", lambda: True if libc.umount2(b"/scratch", 2) == 0 else None)
attempt("chroot", lambda: os.chroot("/scratch") or "done")
attempt("setns", lambda: True if libc.setns(os.open("/proc/self/ns/pid", 0), 0) == 0 else None)
"""),
    tries("uses what has no namespace", """
for number in (248, 249, 250, 425, 426, 427, 321, 298, 323, 303, 304, 175, 313, 246, 169, 103, 300, 253, 254, 294,
               319, 447, 29, 64, 68, 240, 444, 139, 155, 165, 428, 429, 430, 431, 432, 442):
    attempt(number, lambda: call(number, 0, 0, 0, 0, 0))
import fcntl
file = open("/usr/bin/env")
attempt("flock", lambda: fcntl.flock(file, fcntl.LOCK_SH) or "locked")
attempt("lockf", lambda: fcntl.lockf(file, fcntl.LOCK_SH) or "locked")
for command in (5, 6, 7, 1024, 1026):
    for number in (command, command | 1 << 32):  # the kernel looks at 32 bits of it
        attempt("fcntl", lambda: call(72, file.fileno(), ctypes.c_long(number), ctypes.create_string_buffer(64)))
"""),
    tries("reaches a network", """
for family in (16, 17, 38, 40, 31, 9, 29, 44):
    attempt(family, lambda: socket.socket(family, socket.SOCK_DGRAM) and "socket")
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) and "socket")
for address in (("127.0.0.1", 22), ("127.0.0.1", 8080), ("169.254.169.254", 80), ("10.0.0.1", 53), ("8.8.8.8", 53)):
    def connect():
        s = socket.socket(); s.settimeout(0.2); s.connect(address); return "connected"
    attempt(address, connect)
s = socket.socket(socket.AF_UNIX)
for name in ("\\0/tmp/.X11-unix/X0", "/run/dbus/system_bus_socket", "/var/run/docker.sock"):
    attempt(name, lambda: s.connect(name) or "connected")
interfaces = [l.split(":")[0].strip() for l in open("/proc/net/dev").read().splitlines()[2:]]
if interfaces not in ([], ["lo"]) : print("HOLE", interfaces)
"""),
    # ── resources ────────────────────────────────────────────────────────────────────────────────
    Attack("fork bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
           frozenset({V.TIME_LIMIT})),
    Attack("thread bomb", """
import threading, time
n = 0
try:
    while n < 5000:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1
except RuntimeError: pass
if n > 200: print("HOLE", n)
""", frozenset({V.OK, V.TIME_LIMIT, V.RUNTIME_ERROR, V.MEMORY_LIMIT})),
    Attack("takes all memory", "x = []\nwhile True: x.append(bytearray(1 << 20))", frozenset({V.MEMORY_LIMIT})),
    Attack("takes all memory at once", "x = bytearray(1 << 40)", frozenset({V.MEMORY_LIMIT, V.RUNTIME_ERROR})),
    Attack("takes all memory with children", """
import os
for _ in range(20):
    if os.fork() == 0:
        x = []
        try:
            while True: x.append(bytearray(b"1") * (1 << 20))
        except MemoryError:
            while True: pass
for _ in range(20): os.wait()
""", frozenset({V.MEMORY_LIMIT, V.TIME_LIMIT})),
    Attack("maps shared memory", """
import mmap
x = []
while True:
    m = mmap.mmap(-1, 1 << 24); m.write(b"1" * (1 << 24)); x.append(m)
""", frozenset({V.MEMORY_LIMIT, V.RUNTIME_ERROR})),
    Attack("fills the disk", """
with open("x", "wb") as f:
    while True: f.write(b"1" * (1 << 20))
""", frozenset({V.DISK_LIMIT})),
    Attack("fills the disk with small files", """
i = 0
while True:
    open("/tmp/%d" % i, "wb").close(); i += 1
    if i > 5000: print("HOLE"); break
""", frozenset({V.DISK_LIMIT})),
    Attack("fills /dev/shm", """
i = 0
while True:
    open("/dev/shm/%d" % i, "wb").write(b"1" * (1 << 20)); i += 1
    if i > 500: print("HOLE"); break
""", frozenset({V.DISK_LIMIT})),
    Attack("prints without end", "while True: print('1' * 1000)", frozenset({V.OUTPUT_LIMIT})),
    Attack("complains without end", "import sys\nwhile True: sys.stderr.write('1' * 1000)", frozenset({V.TIME_LIMIT})),
    Attack("burns time", "while True: pass", frozenset({V.TIME_LIMIT})),
    Attack("sleeps", "import time\ntime.sleep(1000)", frozenset({V.TIME_LIMIT})),
    Attack("stops itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", frozenset({V.TIME_LIMIT})),
    Attack("ignores every signal", """
import signal
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""", frozenset({V.TIME_LIMIT})),
    Attack("burns time in children", """
import os
for _ in range(8):
    if os.fork() == 0:
        while True: pass
for _ in range(8): os.wait()
""", frozenset({V.TIME_LIMIT})),
    Attack("burns time in children of children that are gone", """
import os, time
end = time.time() + 60
while time.time() < end:
    if os.fork() == 0:
        if os.fork() == 0:
            t = time.process_time()
            while time.process_time() - t < 0.05: pass
        os._exit(0)
    os.wait()
""", frozenset({V.TIME_LIMIT, V.RUNTIME_ERROR})),
    Attack("recurses until the stack ends", """
import sys, ctypes
sys.setrecursionlimit(10**9)
class A:
    def __getattr__(self, name): return getattr(self, name + "x")
def f(n): return [g for g in map(f, [n + 1])]
f(0)
""", frozenset({V.RUNTIME_ERROR, V.MEMORY_LIMIT, V.TIME_LIMIT})),
    Attack("crashes", "import ctypes\nctypes.string_at(0)", frozenset({V.RUNTIME_ERROR})),
    Attack("crashes the compiler", "(" * 100_000, frozenset({V.RUNTIME_ERROR, V.MEMORY_LIMIT})),
    Attack("is no program", "\0\udc00", frozenset({V.RUNTIME_ERROR})),
    # ── what outlives it ─────────────────────────────────────────────────────────────────────────
    Attack("leaves a daemon", """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            pass
    os._exit(0)
os.wait()
"""),
    Attack("leaves one that holds its output open", """
import os, time
if os.fork() == 0:
    os.setsid(); time.sleep(1000)
print("done", flush=True)
os._exit(0)
"""),
    Attack("leaves threads", """
import threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
""", frozenset({V.TIME_LIMIT})),
    Attack("leaves files", """
for path in ("left", "/tmp/left", "/dev/shm/left", "/scratch/out/left", "main.py.bak"):
    open(path, "w").write("left")
open("main.py", "a").write("\\nprint('HOLE')")
import os
os.chmod("main.py", 0); os.chmod("/scratch/work", 0); os.chmod("/scratch/tmp", 0)
"""),
    tries("finds what others left", """
for path in ("left", "/tmp/left", "/dev/shm/left", "/scratch/out/left", "main.py.bak"):
    if os.path.exists(path): print("HOLE", path)
pids = [n for n in os.listdir("/proc") if n.isdigit()]
if len(pids) > 2: print("HOLE", pids)
if sorted(os.listdir("/scratch/work")) != ["main.py"]: print("HOLE", os.listdir("/scratch/work"))
"""),
    tries("speaks to the keeper", """
for fd in range(3, 300):
    attempt(fd, lambda: os.write(fd, b"ended - 0 0 0 0 0 80") and "written")
"""),
    Attack("does the same in C", r"""
#include <stdio.h>
#include <sys/socket.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <signal.h>
#include <unistd.h>
int main(void) {
    if (socket(40, SOCK_STREAM, 0) >= 0) puts("HOLE vsock");
    if (ptrace(PTRACE_ATTACH, 1, 0, 0) == 0) puts("HOLE ptrace");
    if (kill(1, SIGKILL) == 0) puts("signal sent to nobody");
    long r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(20));  /* getpid of 32 bits */
    printf("HOLE 32-bit call: %ld\n", r);
    return 0;
}
""", frozenset({V.RUNTIME_ERROR}), language="c"),
    Attack("includes a secret", '#include "/etc/shadow"\nint main(void){return 0;}', frozenset({V.COMPILE_ERROR}),
           language="c"),
    Attack("makes the compiler loop", "template<int N> struct A { A<N+1> a; A<N+2> b; }; A<0> x; int main(){}",
           frozenset({V.COMPILE_ERROR, V.TIME_LIMIT, V.MEMORY_LIMIT}), language="cpp"),
    Attack("makes the compiler write without end", "int x[500][1000][1000] = {1}; int main(){return x[1][1][1];}",
           frozenset({V.COMPILE_ERROR, V.DISK_LIMIT, V.TIME_LIMIT, V.MEMORY_LIMIT, V.OK}), language="c"),
    Attack("is a shell that does it all", """
cat /etc/passwd /etc/shadow /proc/1/environ 2>/dev/null && echo HOLE
ls /root /home /var 2>/dev/null && echo HOLE
kill -9 1; kill -9 -1
(trap '' TERM; sleep 100 &) &
:(){ :|:& };:
""", ANY, language="bash"),
    Attack("has a loader that does not exist", r"""
__asm__(".section .interp,\"a\"\n.fill 6000,1,65\n.byte 0\n.text\n");
int main(void) { return 0; }
""", frozenset({V.RUNTIME_ERROR, V.COMPILE_ERROR}), language="c"),
    Attack("is a program too large for its memory", "int x[29000000] = {1};\nint main(void){return x[1];}", ANY,
           Limits(cpu_s=2.0, wall_s=10.0, memory_mb=16, disk_mb=16), language="c"),
    Attack("is larger than its disk", "#" + "x" * 1_500_000, limits=Limits(disk_mb=1, files=8)),
    Attack("compiles to names without end", "".join(f"class {'a' * 180}{i} {{}}\n" for i in range(900))
           + "class Main { public static void main(String[] x) {} }",
           frozenset({V.OK, V.COMPILE_ERROR, V.MEMORY_LIMIT, V.TIME_LIMIT}), Limits(cpu_s=10.0, wall_s=30.0), "java"),
    Attack("compiles to folders without end", "package " + ".".join("a" * 1200) + ";\nclass Main {}",
           frozenset({V.RUNTIME_ERROR, V.COMPILE_ERROR, V.TIME_LIMIT}), Limits(cpu_s=10.0, wall_s=30.0), "java"),
    Attack("waits for itself to look starved", """
import os, time
for _ in range(15):
    if os.fork() == 0:
        t = time.process_time()
        while time.process_time() - t < 0.05: pass
        time.sleep(60); os._exit(0)
time.sleep(60)
""", frozenset({V.TIME_LIMIT}), Limits(cpu_s=3.0, wall_s=2.0)),
]  # fmt: skip
