"""Runs a Python program in the interpreter that is there already."""

# mypy: ignore-errors

import _signal
import io
import os
import sys

from sandboxes.inside.codec import decode, encode, receive, send
from sandboxes.inside.disk import WORK

RESULT_FD, CHANNEL_FD = 3, 4
MAX_REQUEST = 64 << 20


def own_streams():
    """Standard streams on what descriptors 0 to 2 are now: those of process 1 were made for /dev/null."""
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8", "surrogateescape"
    )
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "surrogateescape"
    )
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)),
        "utf-8",
        "backslashreplace",
        line_buffering=True,
    )


def leave(error, skip, module):
    """Ends as the interpreter would, with ``error`` (or None) having come out of the program.

    Of the taking apart of modules only the program's own is done, so that files it left open are written:
    the rest costs more than most programs.
    """
    code = 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    elif error is not None:
        trace = error.__traceback__
        for _ in range(skip):
            trace = trace.tb_next if trace is not None else None
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        code = 1
    try:
        if (threading := sys.modules.get("threading")) is not None:
            threading._shutdown()
        if (atexit := sys.modules.get("atexit")) is not None:
            atexit._run_exitfuncs()
    finally:
        error = None
        module.__dict__.clear()
        for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
            try:
                if stream is not None and not stream.closed:
                    stream.flush()
            except BaseException:
                code = code or 120
        os._exit(code & 0xFF)


def warmed(index, fd, names):
    """Imports those of the submission's files, so that its programs find them imported."""
    where = {name: (offset, size) for name, offset, size in index}
    for name in names:
        offset, size = where[name]
        module = type(sys)(name.rpartition(".")[0])
        module.__file__ = WORK + "/" + name
        code = compile(os.pread(fd, size, offset), module.__file__, "exec", dont_inherit=True)
        sys.modules[module.__name__] = module
        exec(code, module.__dict__)


def run_python(job):
    name = job["python"]
    source_path = WORK + "/" + name
    call = job["call"]
    with open(source_path, "rb") as file:
        source = file.read()
    module = type(sys)("__main__" if call is None and not job["serve"] else "solution")
    module.__file__ = source_path
    module.__builtins__ = __builtins__
    module.__annotations__ = {}
    own_streams()
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    sys.modules[module.__name__] = module
    sys.path.insert(0, WORK)
    sys.argv = [source_path, *job["arguments"]]
    skip = 1  # frames of ours, which no traceback shows
    try:
        exec(compile(source, source_path, "exec", dont_inherit=True), module.__dict__)
        skip = 2
        if call is not None:
            call_function(module, call)
        if job["serve"]:
            answer_calls(module)
    except BaseException as error:
        leave(error, skip, module)
    leave(None, 0, module)


def call_function(module, call):
    """Writes what the function returned to the result's descriptor.

    The program is all around this code and can write there itself: that is no more than returning
    something else. What is right is not known here.
    """
    target = found(module, call["entry_point"])
    data = encode(target(*call["args"], **call["kwargs"])).encode() + b"\n"
    while data:
        data = data[os.write(RESULT_FD, data) :]


def found(module, name):
    """What ``name`` or ``Class.method`` names; a class on the way is made without arguments. Raises AttributeError."""
    target = module
    parts = name.split(".")
    for depth, part in enumerate(parts):
        target = getattr(target, part)
        if depth < len(parts) - 1 and isinstance(target, type):
            target = target()
    return target


def answer_calls(module):
    """Answers the calls that another program, in a box of its own, makes of this one's functions.

    A request is ``[name, args, kwargs]``. The answer is ``["value", v]``, ``["raised", type, text]``,
    ``["refused", why]`` for what is no plain value, or ``["missing", why]``.
    """
    while (text := receive(CHANNEL_FD, MAX_REQUEST)) is not None:
        name, args, kwargs = decode(text)
        try:
            target = found(module, name)
        except AttributeError as error:
            answer = ["missing", str(error)]
        else:
            try:
                value = target(*args, **kwargs)
            except Exception as error:
                answer = ["raised", type(error).__name__, str(error)[:1000]]
            else:
                try:
                    send(CHANNEL_FD, '["value",%s]' % encode(value, 1, exact=True))
                    continue
                except (TypeError, ValueError, RecursionError) as error:
                    answer = ["refused", str(error)[:1000]]
        send(CHANNEL_FD, encode(answer))
