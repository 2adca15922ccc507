"""LaTeX and plain mathematical text to tokens.

Commands that only say how something looks (``\\left``, ``\\displaystyle``, spaces) vanish here, and so do
math delimiters; the contents of ``\\text{…}`` become words in the same stream. Commands that could show
something else than they say (``\\phantom``, ``\\color``, ``\\def``, ``\\char``) are not known, and an unknown
command makes an answer unreadable.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from reward_server.graders.answer import units
from reward_server.graders.answer.numbers import NUMBER_WORDS

MAX_TOKENS = 1200


class Unreadable(Exception):
    """The text is not mathematics by our grammar."""


class TooLarge(Unreadable):
    """It is over a static cap, whatever it may mean."""


class Token(NamedTuple):
    kind: str
    """``n`` number, ``l`` letter, ``w`` word, ``c`` command (its backslash dropped), ``o`` operator,
    ``$`` end."""
    text: str
    spaced: bool = False
    """Whether white space stood before it."""
    worded: bool = False
    """Whether it stood inside ``\\text`` or its like."""


END = Token("$", "")

_TOKEN = re.compile(
    r"""
    (?P<s> (?: [\s~] | \\[,;:!>\ /] | \\q?quad(?![A-Za-z]) | \\(?:thin|med|thick|neg)space(?![A-Za-z]) )+ )
  | (?P<r> \d*\.\d*\\(?:overline|bar|dot)\{\d+\} )
  | (?P<n> [1-9]\d{0,2}(?:(?:\{,\}|,\\!|\\!,|\\,|\\\ |\\;)\s*\d{3})+(?!\d)(?:\.\d+)? | \d+(?:\.\d+)? | \.\d+ )
  | \\(?P<c> [A-Za-z]+ | . )
  | (?P<w> [^\W\d_]+ )
  | (?P<o> [<>!=]= | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,]*\d)|[1-9]\d{0,2}(?: \d{3})+(?!\d)(?!\s*/)")
_DECIMALS = re.compile(r"\.\d+")
_ALONE_SCIENTIFIC = re.compile(r"[+\-]?\d+(?:\.\d+)?[eE][+\-]?\d+")
_SEPARATORS = re.compile(r"\{,\}|\\[,!; ]|[,\s]")

_LOOKS = frozenset(
    """
    left right big Big bigl bigr Bigl Bigr bigg Bigg biggl biggr Biggl Biggr displaystyle textstyle
    scriptstyle limits nolimits middle mathstrut strut rm bf it mathbf mathit boldsymbol bm mathsf
    mathnormal mathcal
    """.split()
)
_TEXTS = frozenset(
    """
    text mbox textbf textit textrm textsf texttt textnormal hbox mathrm operatorname emph
    """.split()
)
FUNCTIONS = frozenset(
    """
    sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth sech csch log ln lg exp
    sqrt cbrt abs min max gcd lcm floor ceil det arg Re Im sgn
    """.split()
)
GREEK = frozenset(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho
    varrho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon
    Phi Psi Omega ell hbar
    """.split()
)
_ALIASES = {"lbrace": "{", "rbrace": "}", "colon": ":"}
_CONSTANT_WORDS = {"pi": "pi", "Pi": "Pi", "infinity": "infty", "inf": "infty", "oo": "infty"}
_WORDS = frozenset(
    """
    and or not no yes odd even true false none am pm the is of to per in way ways
    """.split()
)
_UNKNOWN_BUT_WORD = 4
"""From this length on, letters that mean nothing else are a word, and not a product."""


def tokens(text: str) -> list[Token]:
    """Raises Unreadable, TooLarge. The last token is ``END``."""
    out: list[Token] = []
    _scan(_without_delimiters(text), out, worded=False, level=0)
    out.append(END)
    return out


def _without_delimiters(text: str) -> str:
    if "$" in text:
        text = re.sub(r"(?<!\\)\$\$?([^$]*[^$\s\\])\$\$?(?![\d.])", r" \1 ", text)
    if "\\" in text:
        text = re.sub(r"(?<!\\)\\[()\[\]]", " ", text)
    return text


def _scan(text: str, out: list[Token], *, worded: bool, level: int) -> None:
    if level > 8:
        raise TooLarge("text nested too deep")
    at, end = 0, len(text)
    spaced = False
    depth = 0
    if not worded and _ALONE_SCIENTIFIC.fullmatch(text.strip()):
        out.append(Token("n", text.strip(), False, worded))
        return
    while at < end:
        found = _TOKEN.match(text, at)
        assert found is not None
        kind, piece = found.lastgroup, found.group()
        here, at = at, found.end()
        if len(out) > MAX_TOKENS:
            raise TooLarge(f"more than {MAX_TOKENS} tokens")
        if kind == "s":
            if "~" in piece and not out:
                raise Unreadable("'~' before an answer: about")
            spaced = True
            continue
        if kind == "n":
            if depth == 0 and (grouped := _GROUPED.match(text, here)) is not None:
                if grouped.end() > at or "," in grouped.group():
                    at = grouped.end()
                    if tail := _DECIMALS.match(text, at):
                        at = tail.end()
                    piece = text[here:at]
            out.append(Token("n", _SEPARATORS.sub("", piece), spaced, worded))
        elif kind == "r":
            out.append(Token("n", piece, spaced, worded))
        elif kind == "c":
            name = _ALIASES.get(found["c"], found["c"])
            if name == ":":
                out.append(Token("o", ":", spaced, worded))
                spaced = False
                continue
            if name in _LOOKS:
                if name in ("left", "right") and text[at : at + 1] == ".":
                    raise Unreadable("a bracket without its partner")
                continue
            if name in _TEXTS:
                at = _text(text, at, out, name, spaced=spaced, level=level)
            else:
                depth += 1 if name == "{" else -1 if name == "}" else 0
                out.append(Token("c", name, spaced, worded))
        elif kind == "w":
            _letters(piece, out, spaced=spaced, worded=worded)
        else:
            depth += 1 if piece in "([" else -1 if piece in ")]" else 0
            out.append(Token("o", piece, spaced, worded))
        spaced = False


def _text(text: str, at: int, out: list[Token], name: str, *, spaced: bool, level: int) -> int:
    """Scans the argument of a text command; returns where it ends."""
    while at < len(text) and text[at] in " *":
        at += 1
    if name == "mathrm" and text[at : at + 1].isalpha():  # \\mathrm e
        out.append(Token("l", text[at], spaced))
        return at + 1
    if text[at : at + 1] != "{":
        raise Unreadable(f"\\{name} without its argument")
    end = matching_brace(text, at)
    if end < 0:
        raise Unreadable("a brace that is never closed")
    inner = text[at + 1 : end]
    if name in ("mathrm", "operatorname") and inner.strip() in FUNCTIONS:
        out.append(Token("c", inner.strip(), spaced))
    elif name == "mathrm" and len(inner.strip()) == 1 and inner.strip() in "eidxyzn":
        out.append(Token("l", inner.strip(), spaced))
    else:
        _scan(inner, out, worded=True, level=level + 1)
    return end + 1


def matching_brace(text: str, at: int) -> int:
    """Index of the brace that closes the one at ``at``, escaped braces apart; −1 without one."""
    depth = 0
    position = at
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
            continue
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return -1


def _letters(run: str, out: list[Token], *, spaced: bool, worded: bool) -> None:
    if not run.isascii():
        out.append(Token("w", run, spaced, worded))
    elif len(run) == 1:
        out.append(Token("l", run, spaced, worded))
    elif worded and units.known(run) and run in FUNCTIONS:
        out.append(Token("w", run, spaced, worded))  # \\text{min}, \\text{sec}
    elif run in FUNCTIONS and not worded:
        out.append(Token("c", run, spaced, worded))
    elif run in _CONSTANT_WORDS and not worded:
        out.append(Token("c", _CONSTANT_WORDS[run], spaced, worded))
    elif run in GREEK and not worded and len(run) > 2:
        out.append(Token("c", run, spaced, worded))
    elif (
        worded
        or len(run) >= _UNKNOWN_BUT_WORD
        or run.lower() in _WORDS
        or run.lower() in NUMBER_WORDS
        or units.abbreviation(run)
        or (len(run) > 2 and units.known(run))
        or run.lower() in units.NO_UNIT
    ):
        if run in FUNCTIONS:
            out.append(Token("c", run, spaced))
        else:
            out.append(Token("w", run, spaced, worded))
    else:
        for n, letter in enumerate(run):
            out.append(Token("l", letter, spaced and n == 0, worded))
