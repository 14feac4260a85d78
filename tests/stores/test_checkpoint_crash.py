"""A killed process loses no turn that was acknowledged. The long campaign is benchmarks/crash_sessions.py."""

import random
import subprocess
import sys
from contextlib import aclosing

import pytest

from benchmarks.crash_sessions import ALICE, check, is_clean, open_store, resumed, take_turn

pytestmark = pytest.mark.anyio
KILLS = 6
SOUND = {"turns lost": 0, "turns restored wrong": 0, "forgotten but there": 0}

every = pytest.mark.parametrize("kind", ["files", "sqlite"])


def start(kind, folder, kill):
    command = [sys.executable, "-m", "benchmarks.crash_sessions", "--child", kind, str(folder), str(kill)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@every
async def test_every_acknowledged_turn_restores(kind, tmp_path):
    chance, acknowledged = random.Random(5), []
    for kill in range(KILLS):
        child = start(kind, tmp_path, kill)
        # The moment is counted in acknowledgements, not in seconds, and so is the same on any machine.
        lines = [child.stdout.readline() for _ in range(chance.randrange(1, 30))]
        child.kill()
        rest, errors = child.communicate()
        assert errors == ""
        whole = [line.split() for line in "".join([*lines, rest]).splitlines(keepends=True) if line.endswith("\n")]
        acknowledged += [words for words in whole if len(words) == 3]
        assert is_clean(kind, tmp_path)
    found = await check(kind, tmp_path, acknowledged, all_turns=True)
    assert found.pop("acknowledged") >= KILLS
    assert found == SOUND


@every
async def test_the_check_sees_what_is_lost_or_wrong(kind, tmp_path):
    async with aclosing(open_store(kind, tmp_path)) as store:
        session = await resumed(store, "one")
        replies = [await take_turn(session) for _ in range(3)]
        assert await check(kind, tmp_path, [["saved", "one", "3"]], all_turns=True) == {"acknowledged": 1, **SOUND}
        lost = await check(kind, tmp_path, [["saved", "one", "4"], ["saved", "two", "1"]], all_turns=True)
        assert lost["turns lost"] == 2
        await store.delete(ALICE.for_session("one"), replies[1].checkpoint_id)
        assert (await check(kind, tmp_path, [["saved", "one", "2"]], all_turns=True))["turns lost"] == 1
        await store.forget(ALICE)
        last = await take_turn(await resumed(store, "two"))
        await store.fork(ALICE.for_session("two"), last.checkpoint_id, session_id="one")
        assert (await check(kind, tmp_path, [], all_turns=True))["turns restored wrong"] == 1
