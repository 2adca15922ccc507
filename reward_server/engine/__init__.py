"""Where grading work runs."""
