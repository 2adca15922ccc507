"""Ways to look like a proof without being one: (name, reference, mode, completion, how it must end).

Named after the rows of public reports: sorry under other names, axioms in disguise, other statements under the same name, files
that end early, headers of one's own, unsafe code, and what breaks a checker rather than a theorem.
"""

from __future__ import annotations

from tests.graders.lean_proofs import AND, FALSE, Proof

FALSE_OF_A = "theorem target (a : Prop) : a"
NOT_TRUE = "theorem target : Not True"


def _file(
    name: str,
    completion: str,
    *outcomes: str,
    statement: str = FALSE,
    header: str = "",
    mode: str = "file",
) -> Proof:
    return Proof(name, statement, completion, " ".join(outcomes), mode, header)


CHEATS = [
    # ── sorry ────────────────────────────────────────────────────────────────────────────────────
    _file("sorry", f"{FALSE} := sorry", "axioms"),
    _file("sorry in a lemma", f"theorem l : False := sorry\n{FALSE} := l", "axioms"),
    _file("sorry deep in a term", f"{FALSE} := id (id (False.elim sorry))", "axioms"),
    _file("sorryAx", f"{FALSE} := sorryAx False Bool.false", "axioms"),
    _file("sorryAx that is not synthetic", f"{FALSE} := sorryAx _ Bool.true", "axioms"),
    _file("without the warning", f"set_option warn.sorry false\n{FALSE} := sorry", "axioms"),
    _file("without all warnings", f"set_option warn.sorry false\nset_option linter.all false\n{FALSE} := sorry", "axioms"),
    _file("sorry in the type of a helper", f"def T : Prop := sorry\ntheorem l : T := sorry\n{FALSE} := False.elim (sorryAx _ Bool.false)", "axioms"),
    _file("sorry in a definition", f"def d : False := sorry\n{FALSE} := d", "axioms"),
    _file("sorry behind an instance", f"instance i : Decidable False := Decidable.isTrue sorry\n{FALSE} := by decide", "axioms", "lean_error"),
    # ── axioms ───────────────────────────────────────────────────────────────────────────────────
    _file("an axiom", f"axiom bad : False\n{FALSE} := bad", "axioms"),
    _file("a private axiom", f"private axiom bad : False\n{FALSE} := bad", "axioms"),
    _file("an axiom in a namespace", f"namespace X\naxiom bad : False\nend X\n{FALSE} := X.bad", "axioms"),
    _file("an axiom through lemmas", f"axiom bad : False\ntheorem l : False := bad\ntheorem m : False := l\n{FALSE} := m", "axioms"),
    _file("an opaque constant", f"axiom bad : False\nopaque v : False := bad\n{FALSE} := v", "axioms"),
    _file("a definition", f"axiom bad : False\ndef v : False := bad\n{FALSE} := v", "axioms"),
    _file("a structure that holds it", f"axiom bad : False\nstructure S where\n  h : False\ndef s : S := S.mk bad\n{FALSE} := s.h", "axioms"),
    _file("an instance that holds it", f"axiom bad : False\nclass C where\n  h : False\ninstance : C := C.mk bad\n{FALSE} := C.h", "axioms"),
    _file("called propext", f"namespace X\naxiom propext : False\n{FALSE.replace('target', '_root_.target')} := propext", "axioms"),
    _file("called propext, its namespace left open", "namespace X\naxiom propext : False\ntheorem _root_.target : False := X.propext", "axioms"),
    _file("called «propext»", f"axiom «propext» : False\n{FALSE} := «propext»", "lean_error"),
    _file("called «propext, Quot.sound»", f"axiom «propext, Quot.sound» : False\n{FALSE} := «propext, Quot.sound»", "axioms"),
    _file("called Quot.sound, which is not imported here", f"axiom Quot.sound : False\n{FALSE} := Quot.sound", "axioms"),
    _file("of propext's type but another name", f"axiom propext' {{a b : Prop}} : Iff a b → Eq a b\naxiom bad : False\n{FALSE} := bad", "axioms"),
    _file("an unsafe axiom of the library", f"unsafe def u : Type := lcErased\n{FALSE} := u", "lean_error"),
    _file("with a line break in its name", f"axiom «a\nb» : False\n{FALSE} := «a\nb»", "lean_error", "axioms"),
    _file("target is an axiom", "axiom target : False", "statement_differs"),
    _file("target is opaque", "axiom bad : False\nopaque target : False := bad", "statement_differs"),
    _file("target is a definition", "axiom bad : False\ndef target : False := bad", "statement_differs"),
    # ── compiled code that is believed ───────────────────────────────────────────────────────────
    _file("native_decide", "theorem target : True := by\n  native_decide", "axioms", "lean_error", statement="theorem target : True"),
    _file("implemented_by and native_decide",
          "def lie : Bool := Bool.true\n@[implemented_by lie] def truth : Bool := Bool.false\n"
          "theorem l : Eq truth Bool.true := by native_decide\n" + f"{FALSE} := Bool.ff_ne_tt l", "axioms", "lean_error"),
    _file("an unsafe definition", f"unsafe def u : False := u\n{FALSE} := u", "lean_error"),
    _file("unsafe in a lemma", f"unsafe theorem l : False := l\n{FALSE} := l", "lean_error"),
    _file("partial", f"partial def p : False := p\n{FALSE} := p", "lean_error"),
    _file("an unsafe inductive type", f"unsafe inductive U : Type where\n  | mk (f : U → False) : U\n{FALSE} := (fun u => U.rec (fun f _ => f) u) sorry", "lean_error"),
    _file("the kernel is told not to look", f"set_option debug.skipKernelTC true\n{FALSE} := True.intro", "lean_error"),
    # ── another statement ────────────────────────────────────────────────────────────────────────
    _file("a weaker one", "theorem target : True := True.intro", "statement_differs"),
    _file("a hypothesis more", "theorem target (h : False) : False := h", "statement_differs"),
    _file("a hypothesis by variable", "variable (h : False)\ninclude h\ntheorem target : False := h", "statement_differs"),
    _file("an instance argument", "class C : Prop where\n  h : False\ntheorem target [c : C] : False := c.h", "statement_differs"),
    _file("an implicit argument by itself", "theorem target {a : Prop} (h : a) : a := h", "statement_differs", statement=FALSE_OF_A),
    _file("another name", "theorem target2 : True := True.intro", "statement_differs"),
    _file("in a namespace", "namespace X\ntheorem target : True := True.intro\nend X", "statement_differs", statement="theorem target : True"),
    _file("private", "private theorem target : True := True.intro", "statement_differs", statement="theorem target : True"),
    _file("False means something else in a namespace", "namespace X\ndef False : Prop := True\ntheorem _root_.target : False := True.intro", "statement_differs"),
    _file("False is opened from elsewhere", "def X.False : Prop := True\nopen X in\ntheorem target : X.False := True.intro", "statement_differs"),
    _file("the header's definition is another one", "def Claim : Prop := True\ntheorem target : Claim := True.intro", "statement_differs",
          statement="theorem target : Claim", header="def Claim : Prop := False"),
    _file("the header's structure has other fields", "structure Claim : Prop where\n  h : True\ntheorem target : Claim := Claim.mk True.intro",
          "statement_differs", statement="theorem target : Claim", header="structure Claim : Prop where\n  h : False"),
    _file("the header's type has a constructor more", "inductive Claim : Prop where\n  | a (h : False)\n  | b\ntheorem target : Claim := Claim.b",
          "statement_differs", statement="theorem target : Claim", header="inductive Claim : Prop where\n  | a (h : False)"),
    _file("the header's definition is opaque now", "opaque Claim : Prop := True\ntheorem target : Not Claim → Not Claim := id", "statement_differs",
          statement="theorem target : Not Claim → Not Claim", header="def Claim : Prop := True"),
    _file("a definition below the header's is another one", "def A : Prop := True\ndef Claim : Prop := A\ntheorem target : Claim := True.intro",
          "statement_differs", statement="theorem target : Claim", header="def A : Prop := False\ndef Claim : Prop := A"),
    _file("the header's axiom is a theorem now", "axiom C : Prop\naxiom given : C → False\naxiom c : C\ntheorem target : False := given c",
          "axioms", header="axiom C : Prop\naxiom given : C → False"),
    _file("a definition in place of a library's", "def Not (a : Prop) : Prop := True\ntheorem target : Not True := True.intro", "lean_error", statement=NOT_TRUE),
    _file("universe of its own", "theorem target.{u} : Eq.{u} (PUnit.unit : PUnit.{u}) PUnit.unit := Eq.refl _", "statement_differs",
          statement="theorem target : Eq.{1} (PUnit.unit : PUnit.{1}) PUnit.unit"),
    # ── files that end early, or begin otherwise ─────────────────────────────────────────────────
    _file("#exit before it", f"#exit\n{FALSE} := sorry", "statement_differs"),
    _file("an open comment", f"/- {FALSE} := sorry", "lean_error", "statement_differs"),
    _file("an open comment after it", f"{FALSE} := sorry\n/-", "lean_error", "axioms"),
    _file("nothing", "-- nothing", "statement_differs"),
    _file("its own prelude", f"prelude\ninductive False : Prop where\n  | intro : False\n{FALSE} := False.intro", "lean_error"),
    _file("its own prelude and imports", f"prelude\nimport Mini\naxiom propext : False\n{FALSE} := propext", "lean_error", "axioms"),
    _file("imports less", f"import Mini\naxiom propext : False\n{FALSE} := propext", "lean_error", "axioms"),
    _file("all on the line of the import", "import Ax theorem target : False := anything", "lean_error"),
    _file("an import that is not there", f"import Nowhere\n{FALSE} := sorry", "axioms", "lean_error"),
    _file("a module", f"module\n{FALSE} := sorry", "axioms", "lean_error"),
    # ── what gets out of the place it is put into ────────────────────────────────────────────────
    _file("a body that declares more", "True.intro\naxiom bad : False\ntheorem other : False := bad", "lean_error", mode="body"),
    _file("a body that ends the theorem with sorry", "sorry\ntheorem other : True := True.intro", "axioms", mode="body"),
    _file("tactics that end the theorem", "exact sorry\n\nend\ntheorem x : True := True.intro", "axioms", "lean_error", mode="tactics"),
    _file("a body that is a comment", "/-", "lean_error", mode="body"),
    _file("an equation of its own after the statement", "| _ => sorry", "lean_error", mode="body"),
    _file("text that looks like Lean's messages", '"severity":"information","data":"target does not depend on any axioms"', "lean_error"),
    # ── accepted by error ────────────────────────────────────────────────────────────────────────
    _file("an error elsewhere", f"{AND} := And.intro h.right h.left\ntheorem other : False := True.intro", "lean_error", statement=AND),
    _file("an error in the theorem, which is there all the same", f"{FALSE} := (True.intro : False)", "lean_error"),
    _file("an error that a message kind hides", f"set_option autoImplicit true in\n{FALSE} := by\n  exact foo", "lean_error"),
    _file("a linter's error", f"set_option warningAsError false\n{FALSE} := sorry", "axioms"),
    _file("options that change what is printed", f"set_option pp.all true\nset_option format.width 1\n{FALSE} := sorry\n#print axioms target", "axioms"),
]  # fmt: skip
