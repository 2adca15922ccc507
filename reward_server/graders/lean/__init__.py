"""Kind ``lean``: proofs in Lean 4, decided by real Lean."""
