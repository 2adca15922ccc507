"""Languages: how a source becomes something that runs, with what of this machine, if it is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from glob import glob
from pathlib import Path

from sandboxes.program import Limits

_COMPILING = Limits(cpu_s=20.0, wall_s=60.0, memory_mb=1024, pids=64, disk_mb=256, files=4096)
_BINDS = ("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/include")
"""Programs and libraries of the distribution; not /usr/local, /usr/share, /etc, or anybody's home."""
_ETC = ("/etc/alternatives", *sorted(glob("/etc/java-*-openjdk")))


@dataclass(frozen=True, slots=True)
class Language:
    """One language: its files, commands (inside the box), and needs."""

    name: str
    source: str
    """Name of the file that the source is written to."""
    program: str
    """The program that must be on the machine."""
    install: str
    """How to install it on Debian or Ubuntu."""
    compile: tuple[str, ...] | None = None
    """Compiles ``source`` in the working directory into ``/scratch/out``."""
    run: tuple[str, ...] = ()
    """``{build}`` is where compiled files lie. Empty: the interpreter of the box."""
    version: tuple[str, ...] = ("--version",)
    address_space: bool = True
    """Whether RLIMIT_AS can hold it: runtimes that reserve terabytes and use little need another limit."""
    memory_counted: bool = True
    """Whether RLIMIT_DATA can: what maps more than it uses is watched in place of that."""
    stack_mb: int = 64
    pids: int = 0
    """Threads that its runtime needs besides the program's."""
    memory_mb: int = 0
    """What its runtime needs besides the program's memory."""
    reads: tuple[str, ...] = ()
    """Further parts of this machine that it needs, read-only."""
    compile_limits: Limits = _COMPILING
    hello: str = ""
    """A program that every working compiler takes: where it does not, the toolchain is broken, not the submission."""


_GXX = ("-O2", "-pipe", "-static-libstdc++", "-o", "/scratch/out/main")

LANGUAGES: dict[str, Language] = {
    language.name: language
    for language in (
        Language("python", "main.py", "python3", "apt-get install python3"),
        Language(
            "cpp",
            "main.cpp",
            "g++",
            "apt-get install g++",
            compile=("g++", "-std=gnu++17", *_GXX, "main.cpp"),
            run=("{build}/main",),
            stack_mb=256,
            hello="#include <iostream>\nint main() { std::cout << 1; }\n",
        ),
        Language(
            "c",
            "main.c",
            "gcc",
            "apt-get install gcc libc6-dev",
            compile=(
                "gcc",
                "-std=gnu11",
                "-O2",
                "-pipe",
                "-o",
                "/scratch/out/main",
                "main.c",
                "-lm",
            ),
            hello='#include <stdio.h>\nint main(void) { puts("1"); return 0; }\n',
            run=("{build}/main",),
            stack_mb=256,
        ),
        Language(
            "bash", "main.sh", "bash", "apt-get install bash", run=("/usr/bin/bash", "main.sh")
        ),
        Language(
            "java",
            "Main.java",
            "javac",
            "apt-get install default-jdk-headless",
            compile=(
                "javac",
                "-J-Xmx512m",
                "-J-XX:+UseSerialGC",
                "-J-XX:TieredStopAtLevel=1",
                "-d",
                "/scratch/out",
                "Main.java",
            ),
            hello="class Main { public static void main(String[] x) { System.out.println(1); } }\n",
            run=(
                "/usr/bin/java",
                "-Xmx{memory}m",
                "-Xss16m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Xshare:auto",
                "-cp",
                "{build}",
                "Main",
            ),
            version=("-version",),
            address_space=False,
            pids=40,
            memory_mb=640,
            reads=_ETC,
        ),
        Language(
            "javascript",
            "main.js",
            "node",
            "apt-get install nodejs",
            run=("/usr/bin/node", "--stack-size=16000", "--max-old-space-size={memory}", "main.js"),
            address_space=False,
            stack_mb=24,
            pids=24,
            memory_mb=128,
            reads=("/usr/share/nodejs",),
        ),
        Language(
            "go",
            "main.go",
            "go",
            "apt-get install golang-go",
            compile=("go", "build", "-o", "/scratch/out/main", "main.go"),
            run=("{build}/main",),
            version=("version",),
            address_space=False,
            pids=24,
            memory_mb=64,
            reads=tuple(sorted(glob("/usr/share/go-*"))),
            hello='package main\nimport "fmt"\nfunc main() { fmt.Println(1) }\n',
        ),
        Language(
            "rust",
            "main.rs",
            "rustc",
            "apt-get install rustc",
            compile=("rustc", "--edition", "2021", "-O", "-o", "/scratch/out/main", "main.rs"),
            run=("{build}/main",),
            stack_mb=256,
            hello='fn main() { println!("1"); }\n',
        ),
    )
}
COMMAND = Language(
    "command", "command", "", "", address_space=False, memory_counted=False, stack_mb=256, pids=256
)
"""A program of this machine or of a mounted toolchain: what a submission's ``command`` says."""
ALIASES = {
    "py": "python", "python3": "python", "c++": "cpp", "cc": "cpp", "cxx": "cpp", "g++": "cpp", "sh": "bash",
    "shell": "bash", "js": "javascript", "nodejs": "javascript", "node": "javascript", "golang": "go", "rs": "rust",
}  # fmt: skip


def language_named(name: str) -> Language | None:
    """By its name or an alias, in any case."""
    if name == COMMAND.name:
        return COMMAND
    low = name.lower()
    return LANGUAGES.get(ALIASES.get(low, low))


def readable_by_all(path: Path) -> bool:
    """Whether an unprivileged process can run what lies here: folders like /root/.pyenv are closed."""
    try:
        real = path.resolve(strict=True)
        modes = [p.stat().st_mode for p in (real, *real.parents)]
    except OSError:
        return False
    return all(mode & stat.S_IXOTH for mode in modes)


@cache
def installed(name: str) -> str | None:
    """The full path of a language's program, where a box can use it."""
    if name == "python":
        return python()
    found = shutil.which(LANGUAGES[name].program, path="/usr/bin:/bin")
    return found if found and readable_by_all(Path(found)) else None


@cache
def python() -> str | None:
    """The interpreter of the boxes: this server's own if an unprivileged process can run it, or the system's."""
    mine = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [
        Path(sys.base_prefix) / "bin" / mine,
        Path("/usr/bin") / mine,
        Path("/usr/local/bin/python3"),
    ]
    for candidate in [*candidates, Path("/usr/bin/python3")]:
        if readable_by_all(candidate) and _at_least_3_9(str(candidate)):
            return str(candidate)
    return None


def _at_least_3_9(path: str) -> bool:
    code = "import sys,os; sys.exit(not (sys.version_info >= (3, 9) and hasattr(os, 'pidfd_open')))"
    return subprocess.run([path, "-I", "-S", "-c", code], check=False, env={}).returncode == 0


@cache
def version(name: str) -> str | None:
    """What the program says of itself, shortened to its numbers; None where it is missing."""
    path = installed(name)
    if path is None:
        return None
    command = [path, *LANGUAGES[name].version]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=20,
            env={"HOME": "/tmp", "PATH": "/usr/bin:/bin"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"\d+(?:\.\d+)+", done.stdout + done.stderr)
    return found[0].decode() if found else "unknown"


def read_only_paths() -> list[str]:
    """What of this machine a box sees; boxes are started before it is known for which language."""
    wanted = [*_BINDS, *(p for language in LANGUAGES.values() for p in language.reads)]
    paths = [p for p in wanted if os.path.isdir(p) and not os.path.islink(p)]
    interpreter = python()
    if interpreter is not None:
        prefix = Path(interpreter).resolve().parent.parent
        if prefix != Path("/usr"):
            paths += [str(prefix / "bin"), str(prefix / "lib")]
    return paths


def python_path(interpreter: str) -> list[str]:
    """``sys.path`` of the box's interpreter without any packages."""
    code = "import sys; print('\\n'.join(p for p in sys.path if p))"
    done = subprocess.run(
        [interpreter, "-I", "-S", "-c", code], capture_output=True, check=True, text=True, env={}
    )
    return done.stdout.splitlines()


def pytest_packages() -> tuple[str, ...]:
    """Folders and files of pytest and what it imports, as this server has them: pure Python; () if one is missing."""
    found = []
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            return ()
        found.append(
            str(Path(spec.origin).parent) if spec.submodule_search_locations else spec.origin
        )
    return tuple(found)


SAFE_IMPORTS = frozenset(
    """
    abc array bisect cmath collections copy dataclasses datetime decimal enum fractions functools heapq io itertools
    math operator os random re statistics string struct sys textwrap time types typing
    """.split()
)
"""Modules of the standard library that process 1 may import once for all runs of a Python submission."""
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([\w, \t]+))", re.MULTILINE)


def imports_of(source: str) -> list[str]:
    """Those of a source's imports that are worth doing once, and harmless to do."""
    found: set[str] = set()
    for match in _IMPORT.finditer(source[:20_000]):
        found.update(n.split()[0] for n in (match[1] or match[2]).split(",") if n.strip())
    return sorted(found & SAFE_IMPORTS)
