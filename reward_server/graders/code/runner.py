"""The program that runs one test of a reference. It runs in a box, and imports nothing of the server.

``tests`` and what the prompt defines are here; the candidate is not: it runs in another box, and what its
functions return comes over descriptor 4 as plain data (``sandboxes.inside.codec``). What came of the test goes
to descriptor 3, which the candidate does not have.

A test passes if it ends without an exception, and if nothing went wrong in any call of the candidate: a ``try``
around a call does not hide that the candidate died, or returned what is no plain value.

With ``shared``, for tests that need live objects, the candidate is a module of this same process. Then what the
report says counts only with the plan's token, which is out of its reach, as far as that goes in one process: the
plan's file is gone and the report of success made before the candidate is loaded.
"""

# mypy: ignore-errors

import ast
import builtins
import os
import sys

from sandboxes.inside.codec import NotAValue, decode, encode, receive, send

RESULT, CHANNEL = 3, 4
PLAN = "plan"
NAME = "tests.py"
_NEVER = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit"})
"""Exceptions that loops swallow: a candidate that raises them must not end a test early."""


class CandidateFailed(BaseException):
    """A call that has no result: not for a test to catch."""


class CandidateError(Exception):
    """The candidate raised an exception of a type that is not Python's own."""


class Link:
    """Calls functions of the candidate."""

    def __init__(self, most):
        self.most = most
        self.replies = 0
        self.spoiled = None
        """Why this test cannot pass any more."""
        self.unsendable = None
        """Of an argument that is no plain value: what is wrong with it."""

    def call(self, name, args, kwargs):
        if self.spoiled is not None:
            raise CandidateFailed(self.spoiled)
        try:
            request = encode([name, list(args), kwargs], exact=True)
        except (TypeError, ValueError, RecursionError) as error:
            self.unsendable = (
                f"an argument of {name} is no plain data ({error}): such tests need allow_shared"
            )
            self.spoil(self.unsendable)
        try:
            send(CHANNEL, request)
            text = receive(CHANNEL, self.most)
        except (OSError, NotAValue) as error:
            self.replies += isinstance(error, NotAValue)
            self.spoil(f"{name}: {error}")
        self.replies += 1
        if text is None:
            self.spoil(f"the candidate's process ended in a call of {name}")
        try:
            kind, *rest = decode(text)
            if kind == "value":
                (value,) = rest
                return value
            if kind == "raised":
                kind, message = map(str, rest)
            else:
                self.spoil(f"{name}: {kind}: {rest}"[:500])
        except (NotAValue, ValueError, TypeError) as error:
            self.spoil(f"{name}: {error}"[:500])
        raised = getattr(builtins, kind, None)
        usual = isinstance(raised, type) and issubclass(raised, Exception) and kind not in _NEVER
        if not usual:
            raise CandidateError(f"{kind}: {message}")
        try:
            error = raised(message)
        except TypeError:  # such as UnicodeDecodeError, which is made of more than a text
            error = CandidateError(f"{kind}: {message}")
        raise error

    def spoil(self, why):
        self.spoiled = why
        raise CandidateFailed(why)

    def function(self, name):
        def candidate(*args, **kwargs):
            return self.call(name, args, kwargs)

        candidate.__name__ = candidate.__qualname__ = name
        return candidate


_EVENTS = frozenset(
    """sys._getframe sys._current_frames gc.get_objects gc.get_referrers gc.get_referents sys.addaudithook sys.settrace
    sys.setprofile ctypes.dlopen ctypes.dlsym ctypes.addressof code.__new__ marshal.loads""".split()
)
"""What code of the candidate must not do itself."""
_PROCESSES = frozenset("subprocess.Popen os.system os.exec os.posix_spawn pty.spawn".split())
"""What it must not have others do either: a process without this guard could look into this one."""
_FRAMES = frozenset({"tb_frame", "f_back", "gi_frame", "cr_frame", "ag_frame"})


class Here:
    """The candidate in this process."""

    most = 0
    replies = 0
    unsendable = None

    def __init__(self, source):
        self.module = type(sys)("solution")
        self.module.__file__ = "solution.py"
        sys.modules["solution"] = self.module
        self.source = source
        self.spoiled = None

    def load(self):
        self.replies = 1
        sys.modules.pop("__main__")  # this program, which holds the verdict
        sys.addaudithook(self.guard())
        exec(compile(self.source, "solution.py", "exec", dont_inherit=True), self.module.__dict__)

    def guard(self):
        """Refuses the ways from the candidate's code to the frames and objects of this program. There are others
        (it is one process, after all): this stops those that are in use."""
        look, getframe = self, sys._getframe
        own = (
            *(p for p in sys.path if p.startswith(("/usr/", "/packages/"))),
            "<frozen",
            "<sandboxes.",
        )
        inside = False

        def reaches(event, args):
            match event:
                case "open":
                    deep = reaches_memory(args[0])
                case "object.__getattr__":
                    return args[1] in _FRAMES and not near(getframe(2)).startswith(own)
                case "compile":  # a name that is not its own
                    named = str(args[1]).startswith(own)
                    return named and not near(getframe(2)).startswith(own)
                case _:
                    deep = event in _PROCESSES
                    if event in _EVENTS:
                        return not near(getframe(2)).startswith(own)
            frame = getframe(2) if deep else None
            while frame is not None:
                if near(frame) == "solution.py":
                    return True
                frame = frame.f_back
            return False

        def hook(event, args):
            nonlocal inside
            if inside:
                return
            inside = True
            try:
                bad = reaches(event, args)
            finally:
                inside = False
            if bad:
                look.spoiled = f"the candidate reached for {event}"
                raise PermissionError(look.spoiled)

        return hook

    def function(self, name):
        target = getattr(self.module, name)
        if isinstance(target, type):
            return target

        def candidate(*args, **kwargs):
            return plain(target(*args, **kwargs))

        candidate.__name__ = candidate.__qualname__ = name
        return candidate


def near(frame):
    return "" if frame is None else frame.f_code.co_filename


def reaches_memory(path):
    """Whether a path leads to what processes hold in memory."""
    if not isinstance(path, str | bytes):
        return False
    text = os.path.realpath(path)
    return (text if isinstance(text, str) else os.fsdecode(text)).startswith("/proc/")


def plain(value, depth=0):
    """A subclass of a built-in type as what it holds: its own ``__eq__`` takes no part. Other objects stay."""
    kind = type(value)
    if depth > 100 or kind in (bool, type(None)):
        return value
    for base in (int, float, str, bytes, complex):
        if issubclass(kind, base) and kind is not base and kind.__module__ != "enum":
            return base.__add__(value, base()) if base is not bytes else bytes(memoryview(value))
    if issubclass(kind, list):
        return [plain(v, depth + 1) for v in list.__iter__(value)]
    if issubclass(kind, tuple):
        return tuple([plain(v, depth + 1) for v in tuple.__iter__(value)])
    if kind is dict:
        return {plain(k, depth + 1): plain(v, depth + 1) for k, v in dict.items(value)}
    return value


class Suspicious(ast.NodeTransformer):
    """Makes ``==`` and ``!=`` of shared tests such that an object of the candidate equals no plain value."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            call = ast.Call(ast.Name("__same__", ast.Load()), [node.left, node.comparators[0]], [])
            if isinstance(node.ops[0], ast.NotEq):
                call = ast.UnaryOp(ast.Not(), call)
            return ast.copy_location(call, node)
        return node


_PLAIN = (bool, int, float, str, bytes, complex, list, tuple, dict, set, frozenset, type(None))


def same(a, b):
    for one, other in ((a, b), (b, a)):
        if type(one).__module__ == "solution" and type(other) in _PLAIN:
            return False
    return a == b


def namespace_of(plan, link):
    """What the tests find without defining it: names of the prompt, and functions of the candidate."""
    given = {"__name__": "prompt", "__builtins__": builtins}
    names = {}
    if plan["prompt_names"]:
        exec(compile(plan["prompt"], "prompt.py", "exec", dont_inherit=True), given)
        names = {n: given[n] for n in plan["prompt_names"] if n in given}
    if isinstance(link, Here):
        link.load()
    functions = {name: link.function(name) for name in plan["functions"]}
    if not isinstance(link, Here):
        for module in plan["modules"]:
            made = sys.modules[module] = type(sys)(module)
            made.__dict__.update(functions)
    names.update(functions)
    if plan["functions"]:
        names["candidate"] = functions[plan["functions"][0]]
    return names


def run_plain(plan, test, names):
    """Runs the statements before a test, and then the test."""
    tree = ast.parse(plan["tests"], NAME)
    if plan["shared"]:
        tree = ast.fix_missing_locations(Suspicious().visit(tree))
    module = sys.modules["tests"] = type(sys)("tests")
    space = module.__dict__
    space.update(names, __file__=NAME, __builtins__=builtins)
    if plan["shared"]:
        space["__same__"] = same
    tree.body = [tree.body[n] for n in test["statements"]]
    exec(compile(tree, NAME, "exec", dont_inherit=True), space)
    match test["kind"]:
        case "function":
            space[test["name"]]()
        case "check":
            space[test["name"]](names["candidate"])
        case "method":
            class_name, method = test["name"].split(".")
            made = space[class_name]
            unittest = sys.modules.get("unittest")
            if unittest is None or not issubclass(made, unittest.TestCase):
                one = made()
                for before in ("setup_method", "setUp"):
                    if hasattr(one, before):
                        getattr(one, before)()
                        break
                getattr(one, method)()
                return
            result = unittest.TestResult()
            unittest.TestSuite([made(method)]).run(result)
            bad = [*result.errors, *result.failures]
            if bad:
                raise AssertionError(bad[0][1][-1500:])
            if result.testsRun != 1 or result.skipped or result.unexpectedSuccesses:
                raise AssertionError("the test was skipped")


class Reports:
    """Hears of pytest's results."""

    def __init__(self, file):
        self.file = os.path.abspath(file)
        self.passed = 0
        self.bad = []

    def pytest_collection_finish(self, session):
        os.unlink(self.file)

    def pytest_runtest_logreport(self, report):
        if report.outcome != "passed":
            self.bad.append(f"{report.when} {report.outcome}: {report.longreprtext}")
        elif report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report):
        if report.outcome != "passed":
            self.bad.append(f"collecting {report.outcome}: {report.longreprtext}")


def run_pytest(plan, test, names):
    import pytest

    for name, value in names.items():
        if not hasattr(builtins, name):
            setattr(builtins, name, value)
    with open("test_reference.py", "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(plan["tests"])
    reports = Reports("test_reference.py")
    wanted = "test_reference.py::" + test["name"].replace(".", "::")
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "--rootdir=.",
        "-c",
        "/dev/null",
    ]
    pytest.main([*options, wanted], plugins=[reports])
    if reports.bad or not reports.passed:
        raise AssertionError((reports.bad or ["nothing was run"])[0][-1500:])


def outcome_of(plan, number):
    """(outcome, detail): ``passed``, ``failed``, or where nothing of the candidate has been seen, ``broken`` tests or
    a ``missing`` module."""
    test = plan["list"][number]
    link = Here(plan["candidate"]) if plan["shared"] else Link(plan["most"])
    try:
        names = namespace_of(plan, link)
        (run_pytest if plan["pytest"] else run_plain)(plan, test, names)
        if link.spoiled is None:
            return "passed", ""
        detail = link.spoiled
    except BaseException as error:
        detail = described(plan, error)
        if link.replies == 0 and (link.spoiled is None or link.unsendable):
            # Nothing of the candidate has been seen: whatever is wrong here is wrong with the tests.
            if isinstance(error, ModuleNotFoundError):
                return "missing", str(error)
            return "broken", link.unsendable or detail
    return "failed", link.spoiled or detail


def described(plan, error):
    text = f"{type(error).__name__}: {error}"[:1500]
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is None:
        return text
    lines = plan["tests"].split("\n")
    shown = lines[line - 1].strip()[:500] if line <= len(lines) else ""
    return f"line {line}: {shown}\n{text}"


def report(outcome, detail, token):
    return encode({"outcome": outcome, "detail": detail, "token": token}).encode()


def main():
    with open(PLAN, encoding="ascii") as file:
        plan = decode(file.read())
    os.unlink(PLAN)
    number, token = int(sys.argv[1]), plan.pop("token")
    sys.argv[:] = [NAME]
    write, leave = os.write, os._exit
    data = report("passed", "", token)
    outcome, detail = outcome_of(plan, number)
    if outcome != "passed":
        data = report(outcome, detail[:2000], token if outcome in ("broken", "missing") else "")
    while data:
        data = data[write(RESULT, data) :]
    leave(0)


main()
