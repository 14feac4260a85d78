"""A checkpoint store on Redis with one planted fault breaks the law that is about it."""

from hashlib import sha256

import pytest

from loom.stores.redis import checkpoints
from loom.stores.redis import checkpoints as checkpoint_scripts
from loom.stores.redis.schema import USER_KEYS, CheckpointNames
from loom.testing.conformance import CheckpointStoreSuite
from loom.testing.fakes import FakeClock
from tests.stores.redis.conftest import new_prefix
from tests.stores.redis.test_checkpoints import new_store, winners
from tests.testing.laws import broken_laws

pytestmark = pytest.mark.anyio

NEVER_MEET = "test_scopes_never_meet"
NOBODY_ELSE = "test_forgetting_a_user_touches_nobody_else"
FORK_WHOLE = "test_forgetting_the_source_leaves_the_fork_whole"
OTHERS_WHOLE = "test_deleting_one_leaves_the_others_whole"


def named_by(text):
    """Users told apart by less than their whole scope."""

    def user(names, scope):
        digest = sha256(text(scope).encode()).hexdigest()
        return tuple(f"{names.prefix}:{what}:{digest}" for what in USER_KEYS)

    return [(CheckpointNames, "user", user)]


def sessions_by(text):
    """Sessions told apart by less than their id."""
    return [(checkpoints, "session_name", lambda scope: sha256(text(scope).encode()).hexdigest())]


def said(old, new, *names):
    """Scripts that say something else."""
    found = []
    for name in names or ("ADD", "DELETE", "PRUNE", "FORGET"):
        script = getattr(checkpoint_scripts, name)
        assert script.count(old) == 1
        found.append((checkpoint_scripts, name, script.replace(old, new)))
    return found


FAULTS = {
    "drops the namespace": (named_by(lambda scope: scope.user_id), NOBODY_ELSE),
    "drops the user": (named_by(lambda scope: scope.namespace), NOBODY_ELSE),
    "folds the case of sessions": (sessions_by(lambda scope: scope.key().casefold()), NEVER_MEET),
    "trims sessions": (sessions_by(lambda scope: (scope.session_id or "").strip()), NEVER_MEET),
    "forgets who continues a log": (said("redis.call('HINCRBY', children, parent, 1)", "", "ADD"), OTHERS_WHOLE),
    "removes logs that others continue": (said("or redis.call('HEXISTS', children, node) == 1", ""), OTHERS_WHOLE),
    "removes parts that others use": (
        said("HINCRBY', uses, hash, -1) == 0", "HINCRBY', uses, hash, -1) > -9"),
        "test_equal_parts_come_back_from_every_place",
    ),
    "takes the first part for all": (
        said("redis.call('HSETNX', parts, ARGV[place]", "redis.call('HSETNX', parts, ARGV[12]", "ADD"),
        OTHERS_WHOLE,
    ),
    "lists by session": (
        said("return one > other", "return one < other", "LIST"),
        "test_a_user_lists_all_their_sessions",
    ),
    "prunes one too few": (said("ARGV[3], -1), {}", "ARGV[3] + 1, -1), {}", "PRUNE"), "test_newest_means_last_saved"),
    "counts what stays as gone": (said("gone, left_of(stays)", "gone, 0", "FORGET"), FORK_WHOLE),
}
"""Each fault: what is replaced where by what, and the law that breaks."""


def fixtures():
    clock = FakeClock()
    return {"clock": clock, "store": new_store(clock)}


@pytest.mark.parametrize("law", sorted({law for _, law in FAULTS.values()}))
async def test_a_sound_store_keeps_the_law(law):
    assert await broken_laws(CheckpointStoreSuite, fixtures, law) == set()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_fault_breaks_its_law(fault, monkeypatch):
    planted, law = FAULTS[fault]
    for one in planted:
        monkeypatch.setattr(*one)
    assert await broken_laws(CheckpointStoreSuite, fixtures, law) == {law}


async def test_writers_who_do_not_compare_all_win(monkeypatch):
    for one in said("newest(session) ~= ARGV[5] or", "", "ADD"):
        monkeypatch.setattr(*one)
    assert len(await winners(new_prefix())) > 1
