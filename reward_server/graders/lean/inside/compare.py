"""Whether what a submission proves is what was asked, and what its proof rests on.

Both are read as data (``olean``). The statement is the same if its expression is, up to names of bound variables and of
universe parameters, and if every declaration of the challenge that it mentions is the same as well, and so on.
"""

# mypy: ignore-errors

from olean import (
    APP,
    AXIOM,
    BVAR,
    CONST,
    CONSTRUCTOR,
    DEFINITION,
    FORALL,
    IMAX,
    INDUCTIVE,
    KINDS,
    LAM,
    LET,
    LIT,
    MAX,
    MDATA,
    OPAQUE,
    PARAM,
    PROJ,
    QUOT,
    RECURSOR,
    SORT,
    SUCC,
    THEOREM,
    ZERO,
    Malformed,
    Module,
)


class Differs(Exception):
    """The submission proves something else; the message says what."""


def shown(name):
    return ".".join(map(str, name))


class Comparison:
    def __init__(self, challenge, submission):
        self.challenge = challenge
        self.submission = submission

    def statement(self, target):
        """The theorem has the type that was asked for. Raises Differs."""
        asked, given = self.challenge.constant(target), self.found(target)
        if asked.kind != THEOREM:
            raise Malformed(f"the challenge's {shown(target)} is no theorem")
        if given.kind != THEOREM:
            raise Differs(f"{shown(target)} is declared as {KINDS[given.kind]}")
        waiting = self.same_type(asked, given)
        done = {target}
        while waiting:
            name = waiting.pop()
            if name in done:
                continue
            done.add(name)
            if name in self.challenge.constants:
                waiting |= self.same(self.challenge.constant(name), self.found(name))
            elif name in self.submission.constants:
                raise Differs(f"{shown(name)}, which the statement mentions, is declared anew")

    def found(self, name):
        if name not in self.submission.constants:
            raise Differs(f"{shown(name)} is not declared")
        return self.submission.constant(name)

    def same_type(self, asked, given):
        """Names that both types mention."""
        if len(asked.parameters) != len(given.parameters):
            raise Differs(f"{shown(asked.name)} has other universe parameters")
        return self.same_expression(asked, asked.type, given, given.type)

    def same(self, asked, given):
        """Two declarations of one name; names that both mention."""
        what = shown(asked.name)
        if asked.kind != given.kind:
            raise Differs(f"{what} is declared as {KINDS[given.kind]}, not as {KINDS[asked.kind]}")
        if asked.unsafe != given.unsafe:
            raise Differs(f"{what} is not as safe as it was")
        names = self.same_type(asked, given)
        if asked.kind in (DEFINITION, OPAQUE):
            names |= self.same_expression(asked, asked.value, given, given.value)
        if asked.kind == INDUCTIVE:
            counts = [[c.image.number(c.field(n)) for n in (1, 2)] for c in (asked, given)]
            if counts[0] != counts[1] or asked.relatives() != given.relatives():
                raise Differs(f"{what} has other parameters or constructors")
        if asked.kind == CONSTRUCTOR:
            counts = [[c.image.number(c.field(n)) for n in (2, 3, 4)] for c in (asked, given)]
            if counts[0] != counts[1]:
                raise Differs(f"{what} has other fields")
        if asked.kind == RECURSOR:
            names |= self.same_rules(asked, given)
        if asked.kind == QUOT and asked.image.scalar(asked.address, 0) != given.image.scalar(
            given.address, 0
        ):
            raise Differs(f"{what} is another quotient constant")
        return names | set(asked.relatives())

    def same_rules(self, asked, given):
        names = set()
        rules = [
            [c.image.fields(r, 0, 3) for r in c.image.listed(c.field(6))] for c in (asked, given)
        ]
        if len(rules[0]) != len(rules[1]):
            raise Differs(f"{shown(asked.name)} has other rules")
        for a, b in zip(*rules):
            same = asked.image.name(a[0]) == given.image.name(b[0])
            if not same or asked.image.number(a[1]) != given.image.number(b[1]):
                raise Differs(f"{shown(asked.name)} has other rules")
            names |= self.same_expression(asked, a[2], given, b[2])
        return names

    def same_expression(self, asked, one, given, other):
        """Names that both mention. Raises Differs."""
        a, b = asked.image, given.image
        of_a = {n: i for i, n in enumerate(asked.parameters)}
        of_b = {n: i for i, n in enumerate(given.parameters)}
        names = set()
        waiting = [(one, other)]
        seen = set()
        differs = Differs(f"{shown(asked.name)} states something else")
        while waiting:
            pair = waiting.pop()
            if pair in seen:
                continue
            seen.add(pair)
            x, y = bare(a, pair[0]), bare(b, pair[1])
            (tag, mine), (other_tag, theirs) = a.node(x), b.node(y)
            if tag != other_tag or tag > PROJ or len(mine) != len(theirs):
                raise differs
            if tag == APP:
                waiting += zip(mine[:2], theirs[:2])
            elif tag in (LAM, FORALL):
                waiting += zip(mine[1:3], theirs[1:3])
            elif tag == LET:
                waiting += zip(mine[1:4], theirs[1:4])
            elif tag == CONST:
                name = a.name(mine[0])
                levels = a.listed(mine[1]), b.listed(theirs[1])
                if name != b.name(theirs[0]) or len(levels[0]) != len(levels[1]):
                    raise differs
                if not all(same_level(a, of_a, u, b, of_b, v) for u, v in zip(*levels)):
                    raise differs
                names.add(name)
            elif tag == SORT:
                if not same_level(a, of_a, mine[0], b, of_b, theirs[0]):
                    raise differs
            elif tag == BVAR:
                if a.number(mine[0]) != b.number(theirs[0]):
                    raise differs
            elif tag == LIT:
                if literal(a, mine[0]) != literal(b, theirs[0]):
                    raise differs
            elif tag == PROJ:
                name = a.name(mine[0])
                if name != b.name(theirs[0]) or a.number(mine[1]) != b.number(theirs[1]):
                    raise differs
                names.add(name)
                waiting.append((mine[2], theirs[2]))
            else:
                raise Malformed("an expression that is not closed")
        return names


def bare(image, address):
    """Without the notes that Lean's elaborator puts around expressions."""
    seen = set()
    while True:
        tag, fields = image.node(address)
        if tag != MDATA:
            return address
        if address in seen or len(fields) < 2:
            raise Malformed("an expression that has no end")
        seen.add(address)
        address = fields[1]


def literal(image, address):
    tag, fields = image.node(address)
    if tag > 1 or not fields:
        raise Malformed("no literal where one is due")
    return (tag, image.number(fields[0]) if tag == 0 else image.text(fields[0]))


def same_level(a, of_a, one, b, of_b, other):
    waiting = [(one, other)]
    seen = set()
    while waiting:
        pair = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        (tag, mine), (other_tag, theirs) = a.node(pair[0]), b.node(pair[1])
        if tag != other_tag or len(mine) != len(theirs):
            return False
        if tag in (SUCC, MAX, IMAX):
            waiting += zip(mine, theirs)
        elif tag == PARAM:
            position = of_a.get(a.name(mine[0]))
            if position is None or position != of_b.get(b.name(theirs[0])):
                return False
        elif tag != ZERO:
            raise Malformed("no universe level where one is due")
    return True


def rests_on(module, target):
    """(axioms and unsafe constants that are declared here, names that are declared elsewhere, how many here) of all
    that a constant rests on."""
    axioms, unsafe, elsewhere, done = [], [], set(), set()
    waiting = [target]
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        if name not in module.constants:
            elsewhere.add(name)
            continue
        constant = module.constant(name)
        if constant.kind == AXIOM:
            axioms.append(name)
        if constant.unsafe:
            unsafe.append(name)
        waiting += constant.used()
    return (
        sorted(axioms, key=shown),
        sorted(unsafe, key=shown),
        sorted(elsewhere, key=shown),
        len(done) - len(elsewhere),
    )


def compared(challenge_parts, submission_parts, target):
    """What the server is told, as plain data."""
    challenge = Module(challenge_parts)
    if target not in challenge.constants:
        return {"broken": f"the challenge does not declare {shown(target)}"}
    if challenge.constant(target).kind != THEOREM:
        return {"broken": f"the challenge's {shown(target)} is no theorem"}
    submission = Module(submission_parts)
    if submission.imports != challenge.imports:
        return {
            "differs": "other imports than the challenge's: "
            + ", ".join(map(shown, submission.imports))
        }
    try:
        Comparison(challenge, submission).statement(target)
    except Differs as difference:
        return {"differs": str(difference)}
    axioms, unsafe, elsewhere, count = rests_on(submission, target)
    given = [n for n in axioms if n in challenge.constants and same_axiom(challenge, submission, n)]
    return {
        "axioms": axioms,
        "given": given,  # declared by the challenge as well
        "unsafe": unsafe,
        "elsewhere": elsewhere,
        "constants": count,
    }


def same_axiom(challenge, submission, name):
    comparison = Comparison(challenge, submission)
    try:
        waiting = comparison.same(challenge.constant(name), submission.constant(name))
        done = set()
        while waiting:
            other = waiting.pop()
            if other not in done and other in challenge.constants:
                done.add(other)
                waiting |= comparison.same(challenge.constant(other), comparison.found(other))
    except Differs:
        return False
    return True
