"""Grader kinds, one file or folder each."""
