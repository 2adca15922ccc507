"""Calls of the C library, without ctypes: importing that takes as long as starting the interpreter."""

# mypy: ignore-errors

import _ctypes
import errno
import sys

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 4, 22, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47
PR_CAP_AMBIENT_CLEAR_ALL, SECCOMP_MODE_FILTER = 4, 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MNT_DETACH = 1, 2, 4, 32, 2
CAPABILITIES = 41
CAPABILITY_VERSION_3 = 0x20080522


class _Int(_ctypes._SimpleCData):
    _type_ = "i"


class _Long(_ctypes._SimpleCData):
    _type_ = "l"


class _Byte(_ctypes._SimpleCData):
    _type_ = "c"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_LIBC = _ctypes.dlopen(None, 0)
_C = {n: _Function(_ctypes.dlsym(_LIBC, n)) for n in ("prctl", "mount", "umount2", "capset")}


def c(name, *args):
    """Calls a C function; integers are longs, bytes are pointers. Raises OSError."""
    passed = tuple(_Long(a) if isinstance(a, int) else a for a in args)
    if _C[name](*passed) != 0:
        raise OSError(_ctypes.get_errno(), name)


def in_memory(data):
    """(what keeps it alive, address) of a copy of ``data``."""
    array = type("_Bytes", (_ctypes.Array,), {"_length_": len(data), "_type_": _Byte})
    kept = array.from_buffer_copy(data)
    return kept, _ctypes.addressof(kept)


def undumpable():
    """Closes this process's memory, environment and file descriptors to others of its user."""
    c("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def drop_bounding():
    """No capability can come back to a child, whatever it executes."""
    for capability in range(CAPABILITIES):
        try:
            c("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError as error:
            if error.errno != errno.EINVAL:  # one that this kernel does not know
                raise
    c("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)


def drop_capabilities():
    c("capset", CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4), bytes(24))


def filter_calls(seccomp):
    """Installs a system call filter, and that no program regains what this process gave up."""
    c("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if seccomp:
        keep, address = in_memory(seccomp)
        length, where = (
            (len(seccomp) // 8).to_bytes(8, sys.byteorder),
            address.to_bytes(8, sys.byteorder),
        )
        c("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, length + where, 0, 0)
        del keep
