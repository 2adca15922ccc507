"""The reward server: versioned graders behind an HTTP service."""
