"""Tables, queries, migrations and the group-commit writer."""
