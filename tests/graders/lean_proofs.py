"""Proofs for the small prelude of ``tests/lean``: (statement, mode, completion, how it must end)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

AND = "theorem target (a b : Prop) (h : And a b) : And b a"
IMP = "theorem target (a b c : Prop) (f : a → b) (g : b → c) : a → c"
OR = "theorem target (a b : Prop) (h : Or a b) : Or b a"
FALSE = "theorem target : False"
EQ = "theorem target {α : Type} (x y z : α) (h : Eq x y) (k : Eq y z) : Eq x z"
ID = "theorem target.{u} (α : Sort u) (x : α) : Eq (id x) x"


@dataclass(frozen=True)
class Proof:
    name: str
    statement: str
    completion: str
    outcome: str = "proved"
    mode: str = "theorem"
    header: str = ""
    theorem: str | None = None
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def reference(self) -> dict[str, Any]:
        found: dict[str, Any] = {"statement": self.statement, "imports": ["Ax"]}
        if self.header:
            found["header"] = self.header
        if self.theorem:
            found["theorem"] = self.theorem
        return found


def _term(name: str, statement: str, term: str, outcome: str = "proved", **more: Any) -> Proof:
    return Proof(name, statement, term, outcome, mode="body", **more)


PROOFS = [
    # ── right ────────────────────────────────────────────────────────────────────────────────────
    _term("a term", AND, "And.intro h.right h.left"),
    _term("a term after :=", AND, ":= ⟨h.right, h.left⟩"),
    _term("a block of tactics", AND, "by\n  exact And.intro h.right h.left"),
    _term("constructor", AND, "by\n  constructor\n  exact h.right\n  exact h.left"),
    _term("intro", IMP, "by\n  intro x\n  exact g (f x)"),
    _term("a function", IMP, "fun x => g (f x)"),
    _term("apply", IMP, "by\n  intro x\n  apply g\n  apply f\n  assumption"),
    _term("a match", OR, "match h with\n  | Or.inl x => Or.inr x\n  | Or.inr y => Or.inl y"),
    _term("a recursor", OR, "Or.rec (fun x => Or.inr x) (fun y => Or.inl y) h"),
    _term("transitivity", EQ, "Eq.trans h k"),
    _term("universe polymorphic", ID, "Eq.refl x"),
    _term("rfl", "theorem target : Eq (id True) True", "by\n  exact rfl"),
    _term("decide", "theorem target : True", "by\n  decide"),
    _term("with propext", "theorem target (a : Prop) (h : a) : Eq a True",
          "propext (Iff.intro (fun _ => True.intro) (fun _ => h))"),
    _term("with choice", "theorem target (α : Type) (h : Nonempty α) : Nonempty α",
          "Nonempty.intro (Classical.choice h)"),
    Proof("tactics alone", AND, "constructor\nexact h.right\nexact h.left", mode="tactics"),
    Proof("tactics in a fence", AND, "So:\n```lean\nexact And.intro h.right h.left\n```\nDone.", mode="tactics"),
    Proof("the whole theorem", AND, f"{AND} := And.intro h.right h.left"),
    Proof("in a fence", AND, f"Here.\n```lean4\n{AND} := And.intro h.right h.left\n```"),
    Proof("bound variables have other names", AND,
          "theorem target (p q : Prop) (x : And p q) : And q p := And.intro x.right x.left"),
    Proof("binders are written as a quantifier", AND,
          "theorem target : ∀ (a b : Prop), And a b → And b a := fun _ _ h => And.intro h.right h.left"),
    Proof("by a lemma before it", AND,
          "theorem swap {a b : Prop} (h : And a b) : And b a := And.intro h.right h.left\n" + AND + " := swap h"),
    Proof("by definitions of its own", AND,
          "def swapped (a b : Prop) : Prop := And b a\n"
          "theorem lemma1 (a b : Prop) (h : And a b) : swapped a b := And.intro h.right h.left\n" + AND + " := lemma1 a b h"),
    Proof("by an inductive type of its own", AND,
          "inductive Pair (a b : Prop) : Prop where\n  | mk (x : a) (y : b) : Pair a b\n"
          "theorem first {a b : Prop} (h : Pair a b) : a := Pair.rec (fun x _ => x) h\n"
          + AND + " := And.intro (first (Pair.mk h.right h.left)) h.left"),
    Proof("a private lemma", AND,
          "private theorem p {a b : Prop} (h : And a b) : And b a := And.intro h.right h.left\n" + AND + " := p h"),
    Proof("in a namespace that it closes", AND,
          "namespace N\ntheorem l {a b : Prop} (h : And a b) : And b a := And.intro h.right h.left\nend N\n" + AND + " := N.l h"),
    Proof("a namespace that it leaves open", AND, AND + " := And.intro h.right h.left\nnamespace N"),
    Proof("#exit after it", AND, AND + " := And.intro h.right h.left\n#exit\ntheorem no : False := sorry"),
    Proof("messages beside it", AND, AND + " := And.intro h.right h.left\n#check target\n#print axioms target"),
    Proof("another theorem with sorry, which is not used", AND,
          "theorem unused : False := sorry\n" + AND + " := And.intro h.right h.left"),
    Proof("with comments", AND, "/- target -/ -- sorry\n" + AND + " := /- axiom -/ And.intro h.right h.left"),
    Proof("CRLF", AND, AND + " :=\r\n  And.intro h.right h.left\r\n"),
    Proof("a header with definitions", "theorem target (a b : Prop) (h : Both a b) : a", "h.left", mode="body",
          header="abbrev Both (a b : Prop) : Prop := And a b"),
    Proof("variables in the header", "theorem target (h : And a b) : a", "h.left", mode="body",
          header="variable (a b : Prop)"),
    Proof("a full name", "theorem Some.Where.target (a : Prop) (h : a) : a", "h", mode="body"),
    Proof("a type and a name", "∀ (a : Prop), a → a", "fun _ h => h", mode="body", theorem="my_id"),
    Proof("reasoning before it", AND, f"<think>{FALSE} := sorry</think>\n```lean\n{AND} := And.intro h.right h.left\n```"),
    # ── wrong ────────────────────────────────────────────────────────────────────────────────────
    _term("of the wrong type", AND, "h", "lean_error"),
    _term("unfinished tactics", AND, "by\n  constructor", "lean_error"),
    _term("unknown names", AND, "And.swap h", "lean_error"),
    _term("no proof", AND, "", "no_proof"),
    _term("cannot be read", AND, "by by by (((", "lean_error"),
    Proof("no theorem", AND, "theorem other : True := True.intro", "statement_differs"),
    Proof("only prose", AND, "The proof is trivial.", "lean_error"),
    Proof("declared twice", AND, f"{AND} := And.intro h.right h.left\n" * 2, "lean_error"),
    Proof("an example", AND, AND.replace("theorem target", "example") + " := And.intro h.right h.left", "statement_differs"),
    Proof("recursion without an end", AND, AND + " := target a b h", "lean_error"),
    Proof("universe mismatch", ID, "theorem target.{u} (α : Type u) (x : α) : Eq (id x) x := Eq.refl x", "statement_differs"),
]  # fmt: skip
