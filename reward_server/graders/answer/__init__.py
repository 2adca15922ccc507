"""Kind ``answer``: final answers in mathematics, found, read and compared."""
