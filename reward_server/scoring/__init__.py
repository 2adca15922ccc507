"""The one path of a completion: resolve, reuse, dispatch, record."""
