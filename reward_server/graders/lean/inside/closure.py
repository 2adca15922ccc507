"""Which axioms constants of imported modules rest on. Reads only files of the toolchain and the project, which are trusted."""

# mypy: ignore-errors

import os

from olean import AXIOM, Malformed, Module, parts_of


def modules_of(paths, imports):
    """All modules that these import, directly or not. Raises Malformed, OSError."""
    found = {}
    waiting = [tuple(i) for i in imports]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        file = os.path.join(*map(str, name)) + ".olean"
        path = next(
            (p for folder in paths if os.path.exists(p := os.path.join(folder, file))), None
        )
        if path is None:
            raise Malformed(f"no {file} in the search path")
        module = found[name] = Module(parts_of(path))
        if module.is_module and len(module.image.regions) < 3:
            raise Malformed(f"{file} lacks its .private part: proofs are not in it")
        waiting += module.imports
    return found


def axioms_of(paths, imports, wanted, known):
    """{name: (axioms, whether it rests on unsafe code)} of what is wanted and all that was met on the way.

    Declarations that mention each other have the same axioms: strongly connected components, by Tarjan's algorithm
    (SIAM J. Comput. 1, 1972), without recursion.
    """
    declared = {}
    for module in modules_of(paths, imports).values():
        for name in module.constants:
            declared[name] = module
    found = dict(known)
    index, low, on_path, path = {}, {}, set(), []
    for start in wanted:
        if start in found or start in index:
            continue
        work = [(start, None)]
        while work:
            name, rest = work.pop()
            if rest is None:
                index[name] = low[name] = len(index)
                path.append(name)
                on_path.add(name)
                module = declared.get(name)
                if module is None:
                    raise Malformed(f"{'.'.join(map(str, name))} is declared nowhere")
                constant = module.constant(name)
                own = frozenset([name]) if constant.kind == AXIOM else frozenset()
                rest = [iter(sorted(constant.used(), key=str)), own, constant.unsafe]
            descended = False
            for other in rest[0]:
                if other in found:
                    axioms, unsafe = found[other]
                    rest[1] |= axioms
                    rest[2] = rest[2] or unsafe
                elif other not in index:
                    work.append((name, rest))
                    work.append((other, None))
                    descended = True
                    break
                elif other in on_path:
                    low[name] = min(low[name], index[other])
            if descended:
                continue
            pending[name] = (rest[1], rest[2])
            if low[name] == index[name]:
                members = []
                while True:
                    member = path.pop()
                    on_path.discard(member)
                    members.append(member)
                    if member == name:
                        break
                axioms = frozenset().union(*(pending[m][0] for m in members))
                unsafe = any(pending[m][1] for m in members)
                for member in members:
                    found[member] = (axioms, unsafe)
                    del pending[member]
            if work:
                parent, parent_rest = work[-1]
                low[parent] = min(low[parent], low[name])
                if name in found:
                    parent_rest[1] |= found[name][0]
                    parent_rest[2] = parent_rest[2] or found[name][1]
    return found


pending = {}
"""What is known of members of components that are not complete yet."""
