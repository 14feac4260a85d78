import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.scope import Scope
from loom.errors import ScopeRequired, UsageError

tricky = st.sampled_from(
    ["a", "a/b", "b/c", "c", "*", "%", "'", '"', "1:a", "-", "a1:b", ":", "::", "é", "e\u0301", "İ", "a "]
)
ids = st.one_of(tricky, st.text(alphabet="a1:-/", min_size=1, max_size=6), st.text(min_size=1, max_size=20)).filter(
    lambda s: s.strip() and "\0" not in s and s.isprintable()
)
scopes = st.builds(Scope, ids, ids, st.none() | ids)


@given(scopes, scopes)
def test_keys_are_equal_only_for_equal_scopes(one: Scope, other: Scope):
    assert (one.key() == other.key()) == (one == other)


@given(scopes, scopes)
def test_no_key_is_the_start_of_another(one: Scope, other: Scope):
    if one != other:
        assert not other.key().startswith(one.key())


def test_a_slash_does_not_move_a_boundary():
    assert Scope("a/b", "c").key() != Scope("a", "b/c").key()
    assert Scope("acme", "alice").key() == "4:acme5:alice-"
    assert Scope("acme", "alice", "s1").key() == "4:acme5:alice2:s1"


@pytest.mark.parametrize("id", ["*", "%", "a'b", 'a"b', "; DROP", "..", "a\nb", " a", "É", "E\u0301", "😀", "x" * 512])
def test_odd_ids_are_kept_verbatim(id: str):
    scope = Scope(id, id, id)
    assert (scope.namespace, scope.user_id, scope.session_id) == (id, id, id)


@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u2003", None])
def test_nobody_is_not_everybody(blank):
    with pytest.raises(ScopeRequired, match=r"^user_id is .*: user_id='alice'"):
        Scope("acme", blank)
    with pytest.raises(ScopeRequired, match=r"^namespace is .*: namespace='default'"):
        Scope(blank, "alice")
    if blank is not None:
        with pytest.raises(ScopeRequired, match=r"^session_id is .*: session_id='monday'"):
            Scope("acme", "alice", blank)


def test_a_user_must_be_named():
    with pytest.raises(ScopeRequired):
        Scope()
    with pytest.raises(ScopeRequired):
        Scope("alice")
    assert Scope(user_id="alice").namespace == "default"


@pytest.mark.parametrize(
    ("bad", "why"),
    [("a\0b", "NUL"), ("a\ud800", "surrogate"), ("x" * 513, "513 bytes"), ("é" * 257, "514"), (7, "int")],
)
def test_ids_that_cannot_be_stored_are_refused(bad, why: str):
    with pytest.raises(UsageError, match=why):
        Scope("acme", bad)


def test_narrowing_and_widening():
    user = Scope("acme", "alice")
    session = user.for_session("s1")
    assert session == Scope("acme", "alice", "s1")
    assert session.for_user() == user


def test_a_scope_covers_its_sessions_and_nobody_else():
    user = Scope("acme", "alice")
    assert user.covers(user)
    assert user.covers(user.for_session("s1"))
    assert not user.for_session("s1").covers(user)
    assert not user.for_session("s1").covers(user.for_session("s2"))
    assert not user.covers(Scope("acme", "alic"))
    assert not user.covers(Scope("acm", "alice"))
