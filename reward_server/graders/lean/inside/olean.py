"""Reads ``.olean`` files as data. Nothing in them is run, and nothing that they say is believed.

A file is an image of Lean's heap: objects that refer to each other by addresses, as if it lay at a base address that its
header states. The parts of a module (``.olean``, ``.olean.server``, ``.olean.private``) refer into those before them.
Layout of version 2, seen in Lean 4.35::

    0   "olean"  version u8  flags u8  Lean's version, 33 bytes  git hash, 40 bytes
    80  base address u64      88  address of the root object u64      96  objects

An object has a header word (reference count i32, size u16, number of object fields u8, tag u8). Tags up to 244 are
constructors: object fields, then scalars. 246 is an array, 249 a string, 250 a large number. An odd "address" is a boxed
small number ``n`` as ``2 n + 1``.

Every read is checked: an address outside of the image, of the wrong kind, or not aligned raises Malformed. There is no
recursion, so depth is bounded by memory alone.
"""

# mypy: ignore-errors

import mmap

ARRAY, STRING, LARGE = 246, 249, 250
AXIOM, DEFINITION, THEOREM, OPAQUE, QUOT, INDUCTIVE, CONSTRUCTOR, RECURSOR = range(8)
KINDS = (
    "axiom",
    "definition",
    "theorem",
    "opaque",
    "quotient",
    "inductive",
    "constructor",
    "recursor",
)
BVAR, FVAR, MVAR, SORT, CONST, APP, LAM, FORALL, LET, LIT, MDATA, PROJ = range(12)
ZERO, SUCC, MAX, IMAX, PARAM, LEVEL_MVAR = range(6)
_HEADER = 96
_MOST_NAME = 1000


class Malformed(Exception):
    """Bytes that are no ``.olean`` file of a known version."""


class _Region:
    def __init__(self, data):
        if len(data) < _HEADER or len(data) % 8 or bytes(data[:5]) != b"olean":
            raise Malformed("not an .olean file")
        if data[5] != 2:
            raise Malformed(f"an .olean file of version {data[5]}; version 2 is known")
        self.size = len(data)
        self.data = memoryview(data)
        self.words = self.data.cast("Q")
        self.base, self.root = self.words[10], self.words[11]


class Image:
    """The parts of one module. Addresses are as in the file."""

    def __init__(self, parts):
        self.regions = [_Region(p) for p in parts]
        self.root = self.regions[-1].root
        self._last = self.regions[-1]
        self._names = {}

    def _at(self, address):
        """(words, index of the object's header word)"""
        region = self._last
        offset = address - region.base
        if not _HEADER <= offset < region.size:
            for region in self.regions:
                offset = address - region.base
                if _HEADER <= offset < region.size:
                    self._last = region
                    break
            else:
                raise Malformed("an address outside of the file")
        if offset & 7:
            raise Malformed("an address that is not aligned")
        return region.words, offset >> 3

    def node(self, address):
        """(tag, object fields) of a constructor; a boxed one has no fields."""
        if address & 1:
            return address >> 1, ()
        words, at = self._at(address)
        header = words[at]
        tag, count = header >> 56, (header >> 48) & 0xFF
        if tag > 244:
            raise Malformed("another object where a constructor is due")
        if at + 1 + count > len(words):
            raise Malformed("an object that ends outside of the file")
        return tag, words[at + 1 : at + 1 + count]

    def fields(self, address, tag, count):
        """The object fields of a constructor that must have this tag, and at least so many."""
        found, fields = self.node(address)
        if found != tag or len(fields) < count:
            raise Malformed("a constructor of another kind than is due")
        return fields

    def scalar(self, address, number):
        """A byte of a constructor's scalars."""
        words, at = self._at(address)
        header = words[at]
        count = (header >> 48) & 0xFF
        where = at + 1 + count + (number >> 3)
        if where >= len(words):
            raise Malformed("an object that ends outside of the file")
        return (words[where] >> (8 * (number & 7))) & 0xFF

    def array(self, address):
        words, at = self._at(address)
        if words[at] >> 56 != ARRAY or at + 3 > len(words):
            raise Malformed("no array where one is due")
        size = words[at + 1]
        if at + 3 + size > len(words):
            raise Malformed("an array that ends outside of the file")
        return words[at + 3 : at + 3 + size]

    def text(self, address):
        words, at = self._at(address)
        if words[at] >> 56 != STRING or at + 4 > len(words):
            raise Malformed("no text where one is due")
        size = words[at + 1]  # with the final NUL
        if not 1 <= size <= 8 * (len(words) - at - 4):
            raise Malformed("a text that ends outside of the file")
        raw = words[at + 4 : at + 4 + (size + 7) // 8].tobytes()[: size - 1]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise Malformed("a text that is not UTF-8") from None

    def number(self, address):
        """A natural number."""
        if address & 1:
            return address >> 1
        words, at = self._at(address)
        if words[at] >> 56 != LARGE or at + 3 > len(words):
            raise Malformed("no number where one is due")
        size = (words[at + 1] >> 32) & 0xFFFFFFFF
        limbs, start = self._limbs(words[at + 2])
        if not 1 <= size < 1 << 31 or start + size > len(limbs):
            raise Malformed("a number that ends outside of the file")
        return int.from_bytes(limbs[start : start + size].tobytes(), "little")

    def _limbs(self, address):
        return self._at(address)

    def listed(self, address):
        """The elements of a list."""
        found = []
        seen = set()
        while not address & 1:
            if address in seen:
                raise Malformed("a list that has no end")
            seen.add(address)
            head, address = self.fields(address, 1, 2)[:2]
            found.append(head)
        return found

    def name(self, address):
        """A name as a tuple of texts and numbers."""
        known = self._names
        found = known.get(address)
        if found is not None:
            return found
        waiting = []
        at = address
        while True:
            if at in known:
                found = known[at]
                break
            tag, fields = self.node(at)
            if tag == 0:
                found = ()
                break
            if tag > 2 or len(fields) < 2 or len(waiting) > _MOST_NAME:
                raise Malformed("no name where one is due")
            waiting.append((at, self.text(fields[1]) if tag == 1 else self.number(fields[1])))
            at = fields[0]
        for at, part in reversed(waiting):
            found = known[at] = (*found, part)
        return found


class Module:
    """What a module declares: names, and where their constants are."""

    def __init__(self, parts):
        self.image = image = Image(parts)
        tag, fields = image.node(image.root)
        if tag != 0 or len(fields) < 3:
            raise Malformed("no module where one is due")
        self.is_module = bool(image.scalar(image.root, 0))
        self.imports = [image.name(image.fields(i, 0, 1)[0]) for i in image.array(fields[0])]
        names, constants = image.array(fields[1]), image.array(fields[2])
        if len(names) != len(constants):
            raise Malformed("as many names as constants are due")
        self.constants = {image.name(n): c for n, c in zip(names, constants)}
        if len(self.constants) != len(names):
            raise Malformed("a name that is declared twice")

    def constant(self, name):
        return Constant(self, name, self.constants[name])


class Constant:
    """One declaration."""

    def __init__(self, module, name, address):
        self.image = image = module.image
        self.kind, fields = image.node(address)
        if self.kind > RECURSOR or not fields:
            raise Malformed("no constant where one is due")
        self.address = fields[0]
        tag, self.fields = image.node(self.address)
        if tag != 0 or not self.fields:
            raise Malformed("no constant where one is due")
        common = image.fields(self.fields[0], 0, 3)
        if image.name(common[0]) != name:
            raise Malformed("a constant under another name than its own")
        self.name = name
        self.parameters = [image.name(p) for p in image.listed(common[1])]
        self.type = common[2]

    def field(self, number):
        if number >= len(self.fields):
            raise Malformed("a constant with too few fields")
        return self.fields[number]

    @property
    def value(self):
        """The address of what it stands for, or None."""
        return self.field(1) if self.kind in (DEFINITION, THEOREM, OPAQUE) else None

    @property
    def unsafe(self):
        scalar = self.image.scalar
        match self.kind:
            case 0 | 3 | 6:  # axiom, opaque, constructor
                return bool(scalar(self.address, 0))
            case 1:  # unsafe, safe, partial
                return scalar(self.address, 0) != 1
            case 5 | 7:  # after isRec, or after k
                return bool(scalar(self.address, 1))
        return False

    def expressions(self):
        """Those that it consists of."""
        found = [self.type]
        if self.value is not None:
            found.append(self.value)
        if self.kind == RECURSOR:
            found += [self.image.fields(r, 0, 3)[2] for r in self.image.listed(self.field(6))]
        return found

    def relatives(self):
        """Names of constants that come with it: constructors, and the types that they are of."""
        image = self.image
        match self.kind:
            case 5:
                return [
                    *map(image.name, image.listed(self.field(3))),
                    *map(image.name, image.listed(self.field(4))),
                ]
            case 6:
                return [image.name(self.field(1))]
            case 7:
                return [*map(image.name, image.listed(self.field(1)))]
        return []

    def used(self):
        """Names of all constants that it mentions."""
        image = self.image
        found = set()
        waiting = self.expressions()
        seen = set()
        node = image.node
        while waiting:
            address = waiting.pop()
            if address in seen:
                continue
            seen.add(address)
            tag, fields = node(address)
            if tag > PROJ or len(fields) < _FIELDS[tag]:
                raise Malformed("no expression where one is due")
            if tag == CONST:
                found.add(fields[0])
            elif tag == APP:
                waiting += fields[:2]
            elif tag == LAM or tag == FORALL:
                waiting += fields[1:3]
            elif tag == LET:
                waiting += fields[1:4]
            elif tag == MDATA:
                waiting.append(fields[1])
            elif tag == PROJ:
                found.add(fields[0])
                waiting.append(fields[2])
            elif tag == FVAR or tag == MVAR:
                raise Malformed("an expression that is not closed")
        return {image.name(n) for n in found} | set(self.relatives())


_FIELDS = (1, 1, 1, 1, 2, 2, 3, 3, 4, 1, 2, 3)


def parts_of(path):
    """The parts of the module whose first file this is, mapped into memory. Raises OSError."""
    found = []
    for name in (path, path + ".server", path + ".private"):
        try:
            with open(name, "rb") as file:
                found.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        except FileNotFoundError:
            if name == path:
                raise
            break
    return found
