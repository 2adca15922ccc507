"""A place in a list of tokens, and the small steps from it."""

from __future__ import annotations

from reward_server.graders.answer.lexer import END, Token, Unreadable


class Cursor:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else END

    def _next(self) -> Token:
        token = self._tokens[self._at]
        if token is not END:
            self._at += 1
        return token

    def _is(self, kind: str, text: str) -> bool:
        token = self._tokens[self._at]
        return token.text == text and token.kind == kind

    def _accept(self, kind: str, text: str) -> bool:
        if self._is(kind, text):
            self._at += 1
            return True
        return False

    def _expect(self, kind: str, text: str) -> None:
        if not self._accept(kind, text):
            raise Unreadable(f"{text!r} expected before {self._peek().text!r}")
