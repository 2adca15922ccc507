"""From the characters of a text to those the lexer knows: Unicode mathematics, full-width forms, digits.

Only what a reader would take for the same sign is mapped. Letters that merely *look* alike (a Cyrillic
А, a Greek Α) stay what they are, so they never match; characters that change what is *seen* without
being seen themselves (bidirectional overrides, tags) make the text unreadable, because no honest answer
has them and a reviewer would see another answer than the one that was graded.
"""

from __future__ import annotations

import re
import unicodedata

_SIGNS = {
    "−": "-", "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "﹣": "-",
    "×": "*", "·": "*", "⋅": "*", "∙": "*", "∗": "*", "⁎": "*", "÷": "/", "∕": "/", "⁄": "/",
    "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ", "∛": r"\cbrt ", "∞": r"\infty ", "π": r"\pi ",
    "≤": r"\le ", "≦": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "≧": r"\ge ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ",
    "∈": r"\in ", "∉": r"\notin ", "∅": r"\emptyset ", "ø": r"\emptyset ", "Ø": r"\emptyset ",
    "ℝ": r"\mathbb{R}", "ℚ": r"\mathbb{Q}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}",
    "ℂ": r"\mathbb{C}", "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "′": "'", "’": "'",
    "‘": "'", "…": r"\ldots ", "⋯": r"\ldots ", "¬": r"\neg ", "∨": r"\lor ", "∧": r"\land ",
    "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "∂": r"\partial ", "→": r"\to ", "⇒": r"\Rightarrow ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ", "∣": "|", "∠": r"\angle ", "△": r"\triangle ",
    "，": ",", "、": ",", "；": ";", "：": ":", "。": ".", "（": "(", "）": ")", "［": "[", "］": "]",
    "｛": "{", "｝": "}", "％": "%", "“": '"', "”": '"', "﹪": "%",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}",
    "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}", "⅚": r"\frac{5}{6}", "⅛": r"\frac{1}{8}",
    "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}", "⅐": r"\frac{1}{7}",
    "⅑": r"\frac{1}{9}", "⅒": r"\frac{1}{10}",
    "µ": r"\mu ",
}  # fmt: skip
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta",
    "θ": "theta", "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi",
    "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ϕ": "phi", "χ": "chi", "ψ": "psi",
    "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi",
    "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_MAP = {**_SIGNS, **{k: f"\\{v} " for k, v in _GREEK.items()}}
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
_SCRIPT_RUNS = re.compile(f"([{''.join(_SUPERSCRIPTS)}]+)|([{''.join(_SUBSCRIPTS)}]+)")
_ROOT_OF_NUMBER = re.compile(r"([√∛])\s*(\d+(?:\.\d+)?|[A-Za-z])")
_UNSEEN = re.compile(
    "[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c\U000e0000-\U000e007f\x00-\x08\x0e-\x1f\x7f]"
)
_ZERO_WIDTH = re.compile("[\u200b-\u200d\u2060\ufeff\u00ad\u180e]")


def unseen(text: str) -> bool:
    """Whether the text has characters that make it read otherwise than it is spelled."""
    return not (text.isascii() and text.isprintable()) and _UNSEEN.search(text) is not None


def to_ascii_math(text: str) -> str:
    """The text with Unicode signs as LaTeX or ASCII; other scripts' letters stay.

    A zero-width character becomes a space: it separates, so it can glue nothing together.
    """
    if text.isascii():
        return text
    text = _ZERO_WIDTH.sub(" ", text)
    text = _ROOT_OF_NUMBER.sub(r"\1{\2}", text)
    text = _SCRIPT_RUNS.sub(_scripts, text)
    return "".join(_one(c) for c in text)


def _scripts(run: re.Match[str]) -> str:
    if run[1]:
        return "^{" + "".join(_SUPERSCRIPTS[c] for c in run[1]) + "}"
    return "_{" + "".join(_SUBSCRIPTS[c] for c in run[2]) + "}"


def _one(character: str) -> str:
    if character < "\x80":
        return character
    if (mapped := _MAP.get(character)) is not None:
        return mapped
    code = ord(character)
    if 0xFF01 <= code <= 0xFF5E:  # full-width ASCII
        return chr(code - 0xFEE0)
    if 0x1D400 <= code <= 0x1D7FF:  # styled letters and digits of mathematics
        return "".join(_MAP.get(c, c) for c in unicodedata.normalize("NFKC", character))
    if (digit := unicodedata.decimal(character, None)) is not None:
        return str(digit)
    return " " if character.isspace() else character
