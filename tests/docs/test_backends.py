"""What the page on backends says of their guarantees is what the tests and fresh servers say.

`LOOM_REWRITE_DOCS=1 pytest tests/docs` writes the tables anew; read the diff then.
"""

import os
from importlib.util import find_spec

import anyio
import pytest

from loom.protocols.memory_store import KeepsJobs
from loom.testing.conformance import MemoryStoreSuite
from loom.testing.conformance.jobs import JobLaws
from tests.docs.backends import BACKENDS, PACKAGES, asked, found, kept, laws_of, linked, started, tables
from tests.docs.pages import REWRITE, ROOT

PAGE = ROOT / "docs/how-to/choose-a-backend.md"
START, END = "<!-- written by tests/docs/test_backends.py -->\n", "<!-- end -->\n"


def need_packages():
    """Skip without the drivers and servers; in CI that is a failure."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        said = f"{', '.join(missing)} not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI looks at every backend, but {said}")
        pytest.skip(said)


def test_the_tables_of_guarantees_are_current(tmp_path):
    need_packages()
    rows = []
    for number, backend in enumerate(BACKENDS):
        place = tmp_path / str(number)
        place.mkdir()
        with started(backend, place) as url:
            rows.append((backend, place, *anyio.run(asked, url)))
    now = tables(rows)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    said, _, after = rest.partition(END)
    if os.environ.get(REWRITE):
        PAGE.write_text(f"{before}{START}\n{now}\n{END}{after}", encoding="utf-8")
    else:
        assert said.strip() == now.strip()


def test_a_power_that_is_missing_costs_its_laws():
    suite = found("test_inmemory:TestInMemory")
    everything = kept(suite, MemoryStoreSuite, lambda _: True)
    assert everything == set(laws_of(MemoryStoreSuite))
    without_jobs = kept(suite, MemoryStoreSuite, lambda power: power is not KeepsJobs)
    assert everything - without_jobs >= set(laws_of(JobLaws))
    assert "test_put_is_all_or_nothing" in without_jobs


def test_a_law_that_a_backend_is_excused_from_does_not_count():
    class Excused(MemoryStoreSuite):
        @pytest.mark.xfail(reason="it cannot")
        async def test_put_is_all_or_nothing(self, store):
            pass

    lost = set(laws_of(MemoryStoreSuite)) - kept(Excused, MemoryStoreSuite, lambda _: True)
    assert lost == {"test_put_is_all_or_nothing"}


def test_a_test_that_is_not_there_shows_nothing():
    with pytest.raises(AttributeError):
        linked("yes", "test_sqlite:test_it_never_fails")
