"""Runs untrusted programs. Knows nothing of graders or HTTP; see ``sandboxes.program`` for the vocabulary."""
