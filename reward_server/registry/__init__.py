"""Immutable grader versions: digests, golden cases, activation."""
