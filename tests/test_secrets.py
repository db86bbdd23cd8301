"""Connection strings are read as libpq reads them, and what is shown of them holds no secret."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bridge.model.secrets import joined, scrubbed, shown, split

TEXT = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF, exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(password=TEXT, host=TEXT, after=st.booleans())
def test_pairs_are_read_as_libpq_reads_them(password: str, host: str, after: bool) -> None:
    made = make_conninfo(**({"host": host, "password": password} if after else {"password": password, "host": host}))
    kept, secrets = split(made)
    assert dict(secrets) == {"password": password}
    assert conninfo_to_dict(kept) == {"host": host}
    assert conninfo_to_dict(joined(kept, secrets)) == {"host": host, "password": password}


@given(password=TEXT, user=TEXT, query=st.booleans())
def test_uris_are_read_as_libpq_reads_them(password: str, user: str, query: bool) -> None:
    named, hidden = quote(user, safe=""), quote(password, safe="")
    made = (
        f"postgresql://{named}@h/db?password={hidden}&port=1" if query else f"postgres://{named}:{hidden}@h/db?port=1"
    )
    kept, secrets = split(made)
    assert dict(secrets) == {"password": password}
    expected = {"user": user, "host": "h", "dbname": "db", "port": "1"}
    assert conninfo_to_dict(kept) == expected
    assert conninfo_to_dict(joined(kept, secrets)) == {**expected, "password": password}


@given(raw=st.text(st.sampled_from("SECRET'\\ =@/:?&%x"), max_size=14))
def test_a_password_that_is_not_quoted_right_is_taken_whole_or_refused(raw: str) -> None:
    for made in (f"password={raw} host=h", f"postgresql://u:{raw}@h/db", f"host=h password={raw}"):
        try:
            kept, secrets = split(made)
        except ValueError:
            continue
        try:
            theirs = conninfo_to_dict(made)
        except Exception:  # noqa: BLE001  # libpq refuses it: so shall we, before anything is shown
            continue
        assert dict(secrets).get("password", "") == (theirs.get("password") or "")
        assert "password" not in conninfo_to_dict(kept)


@pytest.mark.parametrize(
    ("locator", "printed"),
    [
        ("ducklake:postgres:dbname=x password = 'a b' host=h", "ducklake:postgres:dbname=x host=h"),
        ("ducklake:postgres:dbname=x PASSWORD=a", "ducklake:postgres:dbname=x"),
        ("ducklake:postgres:sslpassword=a dbname=x", "ducklake:postgres:dbname=x"),
        ("ducklake:postgres:password=my secret", "ducklake:postgres:..."),
        ("ducklake:postgres:postgresql://u:a@h/db?sslpassword=b", "ducklake:postgres:postgresql://u@h/db"),
        ("ducklake:postgres:postgresql://u:p@ss@h/db", "ducklake:postgres:..."),
        ("ducklake:postgres:postgresql://u:p/ss@h/db", "ducklake:postgres:..."),
        ("ducklake:postgres:postgresql://u:p?ss@h/db", "ducklake:postgres:postgresql://u@h/db"),
        ("ducklake:postgres://u:a@h/db", "ducklake:postgres://u@h/db"),
        ("postgres:dbname=x password=a", "postgres:dbname=x"),
        ("postgresql://u:a@h/db", "postgresql://u@h/db"),
        ("ducklake:postgres:", "ducklake:postgres:"),
        ("ducklake:/a/postgres:dir/file", "ducklake:/a/postgres:dir/file"),
        ("iceberg:/tables/password", "iceberg:/tables/password"),
        ("mysql:host=h password=a", "mysql:host=h password=***"),
    ],
)
def test_what_is_shown_of_a_locator(locator: str, printed: str) -> None:
    assert shown(locator) == printed


def test_what_looks_like_a_secret_is_blotted_out_of_any_text() -> None:
    said = "cannot open (postgresql://u:a:b@h/db) with password='it\\'s b' sslPassword = c"
    assert scrubbed(said) == "cannot open (postgresql://u@h/db) with password=*** sslPassword = ***"
