"""What reads compiled Lean files (``.olean``) in a box. Imports nothing of the server, and only the standard library."""
