"""The program of the audit: what it is asked comes in a file, what it found goes to descriptor 3, both as JSON."""

# mypy: ignore-errors

import json
import os
import sys

from closure import axioms_of
from compare import compared
from olean import Malformed


def asked_to_compare():
    with open("asked.json", encoding="utf-8") as file:
        target = tuple(json.load(file)["target"])
    parts = []
    for name in ("challenge", "submission"):
        files = []
        for suffix in (".olean", ".olean.server", ".olean.private"):
            try:
                with open(name + suffix, "rb") as file:
                    files.append(file.read())
            except FileNotFoundError:
                break
        parts.append(files)
    try:
        return compared(*parts, target)
    except Malformed as error:
        return {"malformed": str(error)}


def asked_for_axioms():
    with open("asked.json", encoding="utf-8") as file:
        asked = json.load(file)
    kinds = [frozenset(tuple(n) for n in axioms) for axioms in asked["kinds"]]
    known = {tuple(name): (kinds[kind], unsafe) for name, kind, unsafe in asked["known"]}
    wanted = [tuple(n) for n in asked["wanted"]]
    try:
        found = axioms_of(asked["paths"], asked["imports"], wanted, known)
    except (Malformed, OSError) as error:
        return {"problem": str(error)}
    numbers = {}
    new = [
        [name, numbers.setdefault(axioms, len(numbers)), unsafe]
        for name, (axioms, unsafe) in found.items()
        if name not in known
    ]
    return {"kinds": [sorted(axioms, key=str) for axioms in numbers], "found": new}


def main():
    ask = {"compare": asked_to_compare, "axioms": asked_for_axioms}[sys.argv[1]]
    data = json.dumps(ask()).encode()
    while data:
        data = data[os.write(3, data) :]


main()
