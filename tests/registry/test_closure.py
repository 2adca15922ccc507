"""The source hash: what changes it and what does not."""

from __future__ import annotations

import pytest

from reward_server.registry.closure import closure, hash_sources, significant, source_hash

SOURCE = b'''"""A module."""

from x import y  # why


def f(a, b=f"{a!r} b"):
    """Adds."""
    # then
    return a + b


class C:
    field: int = 1
    """What the field is."""
'''


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"# why", b"# because"),
        (b'"""Adds."""', b'"""Adds two things."""'),
        (b'"""A module."""', b'"""Another."""'),
        (b'"""What the field is."""', b'"""Something."""'),
        (b"    # then\n", b""),
        (b"a + b", b"a  +  b"),
        (b"\n\n\nclass", b"\n\nclass"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(before: bytes, after: bytes) -> None:
    assert before in SOURCE
    assert hash_sources({"m.py": SOURCE.replace(before, after)}) == hash_sources({"m.py": SOURCE})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a + b\n", b"a - b\n"),
        (b'f"{a!r} b"', b'f"{a!r} c"'),
        (b'f"{a!r} b"', b'f"{a!s} b"'),
        (b"field: int = 1", b"field: int = 2"),
        (b"    return a + b", b"    return a + b\n    return 1"),
    ],
)
def test_code_counts(before: bytes, after: bytes) -> None:
    assert hash_sources({"m.py": SOURCE.replace(before, after)}) != hash_sources({"m.py": SOURCE})


def test_block_structure_counts() -> None:
    inside = b"if a:\n    b()\n    c()\n"
    outside = b"if a:\n    b()\nc()\n"
    assert significant(inside) != significant(outside)


def test_a_string_that_is_no_docstring_counts() -> None:
    assert significant(b'x = "a"\n') != significant(b'x = "b"\n')


def test_data_files_count_as_bytes() -> None:
    assert hash_sources({"a.txt": b"# 1"}) != hash_sources({"a.txt": b"# 2"})


def test_the_closure_of_a_kind_reaches_what_decides_it_and_not_the_service() -> None:
    files = closure("reward_server.graders.exact")
    assert "reward_server/graders/numerals.py" in files
    assert "reward_server/graders/patterns.py" in files
    assert "reward_server/outcome.py" in files
    assert not any(f.startswith(("reward_server/api", "reward_server/store")) for f in files)


def test_kinds_do_not_share_a_hash() -> None:
    hashes = {source_hash(f"reward_server.graders.{m}") for m in ("exact", "format", "composite")}
    assert len(hashes) == 3
