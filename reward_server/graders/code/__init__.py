"""Kind ``code``: programs and functions, graded by what they do in a sandbox."""
