"""The scratch disk of a run: files put there, and files fetched from it."""

# mypy: ignore-errors

import errno
import marshal
import os
import stat

SCRATCH, BUILD, WORK, OUT = "/scratch", "/build", "/scratch/work", "/scratch/out"
CHUNK = 1 << 20


def make_folders():
    for name in ("tmp", "work", "shm", "out"):
        os.mkdir(SCRATCH + "/" + name, 0o700)


def put(folder, index, fd, mode=0o600):
    """Writes the files that lie one behind the other in ``fd`` as ``index`` says: (name, offset, size)."""
    for name, offset, size in index:
        path = folder + "/" + name
        parts = name.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            try:
                os.mkdir(folder + "/" + "/".join(parts[:depth]), 0o700)
            except FileExistsError:
                pass
        out = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode
        )
        try:
            end = offset + size
            while offset < end:
                data = os.pread(fd, min(CHUNK, end - offset), offset)
                if not data:
                    raise OSError(errno.EIO, "files")
                offset += os.write(out, data)
        finally:
            os.close(out)


def open_beneath(folder, name):
    """A file below ``folder`` that is a regular one, reached through no link; -1 where there is none."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, last = name.split("/")
        for part in folders:
            inner = os.open(
                part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at
            )
            os.close(at)
            at = inner
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        found = os.open(last, flags, dir_fd=at)
    except OSError:
        return -1
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        return -1
    return found


def gather(folder, names, fd, cap):
    """Copies files into ``fd`` one behind the other, and behind them an index: (name, size) of those that
    exist and fit. Returns where the index begins, and how many did not fit.
    """
    taken, room, left_out = [], cap, 0
    for name in names:
        source = open_beneath(folder, name)
        if source < 0:
            continue
        try:
            size = os.fstat(source).st_size
            if size > room:
                left_out += 1
                continue
            left = size
            while left and (data := os.read(source, min(CHUNK, left))):
                left -= len(data)
                while data:
                    data = data[os.write(fd, data) :]
            if left:
                os.write(fd, b"\0" * left)
            room -= size
            taken.append((name, size))
        finally:
            os.close(source)
    at = os.lseek(fd, 0, os.SEEK_CUR)
    index = marshal.dumps(taken, 2)
    while index:
        index = index[os.write(fd, index) :]
    return at, left_out


def listing(folder, limit):
    """Names of the regular files below a folder, links not followed."""
    found, todo = [], [""]
    while todo and len(found) < limit:
        here = todo.pop()
        with os.scandir(folder + "/" + here) as entries:
            for entry in entries:
                name = here + entry.name
                if entry.is_dir(follow_symlinks=False):
                    todo.append(name + "/")
                elif entry.is_file(follow_symlinks=False):
                    found.append(name)
    return sorted(found)[:limit]
