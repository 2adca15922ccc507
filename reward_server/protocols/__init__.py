"""Other systems' wire formats, one file each: pure functions in and out."""
