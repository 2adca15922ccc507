"""Kind ``python``: graders that users write and register, run in a sandbox."""
