"""The program that runs a registered grader on a few items. It runs in a box, and imports nothing of the server.

The items come on standard input as JSON. What came of each goes to descriptor 3 as one line of JSON as soon as it is known,
so that what the grader does to this process later takes nothing of it back::

    {"loaded": true}                       first, unless: {"unloadable": "<traceback>"}
    {"returned": …}                        plain data
    {"raised": "<traceback>"}              or returned what is no plain data
"""

# mypy: ignore-errors

import inspect
import json
import math
import os
import sys
import traceback

RESULT = 3
NAME = "grader.py"
MOST_TEXT = 4000
MOST_DEPTH = 50
SPARE = {
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
}


def say(word, _write=os.write, _dumps=json.dumps):
    data = _dumps(word, allow_nan=False).encode("ascii") + b"\n"
    while data:
        data = data[_write(RESULT, data) :]


def described(error):
    """The traceback without frames of this file; its last part, where it is long."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    try:
        lines += traceback.format_exception_only(type(error), error)
    except BaseException:
        lines.append(type(error).__name__ + "\n")
    return "".join(lines).strip().encode("utf-8", "replace").decode()[-MOST_TEXT:]


def plain(value, depth=0):
    """JSON-able data of a returned value; numpy and torch scalars and arrays by ``tolist``. Raises TypeError, ValueError."""
    if depth > MOST_DEPTH:
        raise ValueError("nested too deeply")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > 1024:
            raise ValueError("an integer of more than 1024 bits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value!r} is no finite number")
        return float(value)
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {
            str(k).encode("utf-8", "replace").decode(): plain(v, depth + 1)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [plain(v, depth + 1) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth + 1)
    raise TypeError(f"returned a {type(value).__name__}, which is no plain data")


def text_of(prompt):
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return "\n".join(m["content"] for m in prompt)


def invoke(function, offered):
    """Calls it with those of what is offered by name that it takes, and waits where it is asynchronous."""
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = {p.name for p in parameters}
        offered = {k: v for k, v in offered.items() if k in names}
    found = function(**offered)
    if inspect.iscoroutine(found):
        import asyncio

        found = asyncio.run(found)
    return found


def call_grade(function, item, plan):
    return invoke(function, item)


def call_trl(function, item, plan):
    """``f(prompts, completions, **columns) -> list``, for one item."""
    prompt, completion = item["prompt"], item["completion"]
    talk = isinstance(prompt, list)
    columns = dict(item["metadata"])
    if isinstance(item["reference"], dict) and plan["reference_as"] not in item["reference"]:
        columns |= item["reference"]
    columns.setdefault(plan["reference_as"], item["reference"])
    offered = {name: [value] for name, value in columns.items() if name not in SPARE}
    offered["prompts"] = [prompt if prompt is not None else ""]
    offered["completions"] = [
        [{"role": "assistant", "content": completion}] if talk else completion
    ]
    offered["completion_ids"] = [[]]
    offered["trainer_state"] = None
    offered["log_extra"] = offered["log_metric"] = lambda *a, **k: None
    (reward,) = invoke(function, offered)
    return reward


def call_verl(function, item, plan):
    """``compute_score(data_source, solution_str, ground_truth, extra_info) -> number | {"score", …}``"""
    metadata = dict(item["metadata"])
    offered = {
        "data_source": metadata.get("data_source", ""),
        "solution_str": item["completion"],
        "ground_truth": item["reference"],
        "extra_info": metadata.get("extra_info", metadata),
    }
    found = invoke(function, offered)
    if not isinstance(found, dict):
        return found[0] if isinstance(found, (tuple, list)) else found
    more = {k: v for k, v in found.items() if k != "score"}
    return {"reward": found["score"], "raw": more}


def call_openrlhf(function, item, plan):
    """``reward_func(queries, prompts, labels) -> tensor | list | {"rewards", "scores", "extra_logs"}``, for one item."""
    prompt = text_of(item["prompt"])
    offered = {
        "queries": [prompt + item["completion"]],
        "prompts": [prompt],
        "labels": [item["reference"]],
    }
    found = invoke(function, offered)
    if not isinstance(found, dict):
        return plain(found)[0] if hasattr(found, "__len__") or hasattr(found, "tolist") else found
    more = {k: v for k, v in found.items() if k not in ("rewards", "scores")}
    return {"reward": plain(found["rewards"])[0], "raw": more}


CALLS = {"grade": call_grade, "trl": call_trl, "verl": call_verl, "openrlhf": call_openrlhf}


def loaded(plan):
    with open(NAME, encoding="utf-8", errors="surrogatepass") as file:
        source = file.read()
    module = sys.modules["grader"] = type(sys)("grader")
    module.__file__ = NAME
    exec(compile(source, NAME, "exec", dont_inherit=True), module.__dict__)
    return getattr(module, plan["entry_point"])


def graded(function, call, item, plan):
    try:
        return {"returned": plain(call(function, item, plan))}
    except BaseException as error:
        return {"raised": described(error)}


def main():
    leave = os._exit
    with open("plan", encoding="utf-8") as file:
        plan = json.load(file)
    items = json.loads(sys.stdin.buffer.read())
    try:
        function = loaded(plan)
    except BaseException as error:
        say({"unloadable": described(error)})
        leave(0)
    say({"loaded": True})
    for item in items:
        say(graded(function, CALLS[plan["signature"]], item, plan))
    leave(0)


main()
