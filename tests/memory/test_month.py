"""A month in the life of a memory: three users, ninety sessions, fifteen hundred turns, questions that come again."""

from collections import Counter
from datetime import timedelta

import pytest

from loom import open_memory
from loom.core.filter import Eq
from loom.core.record import Episode, Layer
from loom.core.scope import Scope
from loom.memory._upkeep.summaries import episode_id
from loom.stores.inmemory import InMemoryStore
from loom.stores.sqlite import SqliteStore
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio

USERS = ("alice", "bob", "carol")
DAYS = 30
TURNS = (16, 17)  # of a session: 30 sessions of each user have 500
ASKED_DAILY = ("gate code", "wifi password")
"""Asked in every session."""
ASKED_FOR_DAYS = "bicycle lock"
"""Asked on three days of the third week, and not again."""
CAPACITY = (10, 50, 200, 1000)
COLOURS = ("red", "blue", "green", "white", "black", "brown", "pink")


def turns(user, day):
    """What is said in a session: small talk about numbered things, and on the first day what will be asked for."""
    amount = TURNS[day % 3 > 0]
    said = [f"Crate {day}x{n} of {user} is {COLOURS[(day + n) % 7]}." for n in range(amount)]
    if day == 0:
        said[3] = f"The gate code of {user} is 4711."
        said[5] = f"The wifi password of {user} is sesame."
        said[7] = f"The bicycle lock of {user} opens with 88."
    return said


class Month:
    """A memory, what was said to it, and a clock."""

    def __init__(self, store, clock):
        self.clock = clock
        self.memory = open_memory(store, embedder="static", clock=clock)
        self.said = {user: [] for user in USERS}
        self.sessions = Counter()

    async def day(self, day):
        """One session of each user, with questions in it; the jobs run as an agent runs them."""
        for user in USERS:
            said = turns(user, day)
            for part in (said[:10], said[10:]):
                kept = await self.memory.remember(part, user_id=user, session_id=f"{user}-{day}")
                self.said[user] += [record.id for record in kept.kept]
                self.clock.advance(timedelta(minutes=5))
                await self.ask(user, day)
                await self.memory.metabolize(user_id=user)
            self.sessions[user] += 1

    async def night(self):
        """The jobs run once more; then it is the next day at the same time."""
        self.clock.advance(timedelta(hours=20))
        for user in USERS:
            await self.memory.metabolize(user_id=user)
        self.clock.advance(timedelta(hours=3, minutes=30))

    async def ask(self, user, day):
        for topic in (*ASKED_DAILY, *([ASKED_FOR_DAYS] if 18 <= day <= 20 else [])):
            found = await self.memory.recall(f"What is the {topic}?", user_id=user, limit=1)
            assert topic in found.hits[0].item.text, "nothing that was said is lost"

    async def row(self, user):
        """How many records each layer shows, and the archive."""
        records = await self.episodes(user)
        found = Counter("archive" if record.archived_at else record.layer.label for record in records)
        return [found[name] for name in ("L1", "L2", "L3", "L4", "archive")]

    async def episodes(self, user):
        records = await self.memory.store.list(Scope(user_id=user), where=Eq("kind", "episode"), limit=10_000)
        return [record for record in records if isinstance(record, Episode)]


def living(records):
    return [record for record in records if record.archived_at is None]


def columns(row):
    return "".join(f"{count:5}" for count in row)


def is_within(row):
    return all(count <= most for count, most in zip(row, CAPACITY, strict=False))


@pytest.fixture(params=["inmemory", "sqlite"])
async def month(request, tmp_path):
    clock = FakeClock()
    store = InMemoryStore(clock=clock) if request.param == "inmemory" else SqliteStore(f"{tmp_path}/m.db", clock=clock)
    month = Month(store, clock)
    async with month.memory:
        yield month


async def test_after_each_week_every_layer_holds_what_it_should(month, capsys):
    evenings, nights = {}, {}
    for day in range(DAYS):
        await month.day(day)
        is_end = day % 7 == 6 or day == DAYS - 1
        if is_end:
            evenings[day + 1] = [await month.row(user) for user in USERS]
        await month.night()
        if is_end:
            nights[day + 1] = [await month.row(user) for user in USERS]
            for user in USERS:
                check(month, user, await month.episodes(user), days=day + 1)
    lines = ["\n day  user    in the evening: L1   L2   L3   L4  archive   at night: L1   L2   L3   L4  archive"]
    for day, rows in nights.items():
        for user, evening, night in zip(USERS, evenings[day], rows, strict=True):
            lines.append(f"{day:4}  {user:20}" + columns(evening) + " " * 12 + columns(night))
    with capsys.disabled():
        print("\n".join(lines))  # noqa: T201
    assert sum(len(said) for said in month.said.values()) == 1500
    assert sum(month.sessions.values()) == 90
    # What was asked in every session is in L4, once. L3 has the episodes of the last seven days, and in the third week
    # what was asked for three days: it came back from the archive, and went there again. All else is in the archive.
    assert {day: {tuple(row[:4]) for row in rows} for day, rows in nights.items()} == {
        7: {(0, 0, 7, 2)},
        14: {(0, 0, 7, 2)},
        21: {(0, 0, 8, 2)},
        28: {(0, 0, 7, 2)},
        30: {(0, 0, 7, 2)},
    }
    assert {row[0] for rows in evenings.values() for row in rows} == {10}, (
        "L1 is full while people talk, and not fuller"
    )
    assert all(is_within(row) for table in (evenings, nights) for rows in table.values() for row in rows)
    for user in USERS:
        found = await month.memory.recall("gate code", user_id=user, layers=[Layer.L4])
        assert found.hits[0].item.text == f"The gate code of {user} is 4711."
        last = await month.memory.recall("What did we talk about last time?", user_id=user, limit=1)
        assert last.hits[0].item.session_id == f"{user}-29"
        lock = await month.memory.recall(f"bicycle lock of {user}", user_id=user, limit=1)
        assert lock.hits[0].item.text == f"The bicycle lock of {user} opens with 88."


def check(month, user, records, *, days):
    """What holds after every week."""
    by_id = {record.id: record for record in records}
    assert set(month.said[user]) <= by_id.keys(), "nothing is lost"
    for day in range(days):
        episode = by_id[episode_id(f"{user}-{day}")]
        in_session = [id for id in month.said[user] if by_id[id].session_id == f"{user}-{day}"]
        assert (episode.layer, list(episode.sources)) == (Layer.L3, in_session), "each session has its episode in L3"
        assert (episode.archived_at is None) == (day >= days - 7), "for a week; then it is found in the archive"
    told = [record for record in living(records) if record.id != episode_id(record.session_id)]
    roots = [record.sources[0] if record.sources else record.id for record in told]
    assert len(roots) == len(set(roots)), "no record is in two layers"
