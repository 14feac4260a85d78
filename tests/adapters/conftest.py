"""The five stores of sessions that adapters are tested on; servers start when the first test asks for them."""

from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from loom.testing.servers import redis
from tests.stores.postgres.conftest import new_server
from tests.stores.redis.conftest import check_installed

BACKENDS = ("inmemory", "files", "sqlite", "postgres", "redis")
_numbers = count()


@pytest.fixture(scope="session")
def servers():
    """The URL of a server by its name."""
    urls = dict[str, str]()
    with ExitStack() as stack:

        def url(name: str) -> str:
            if name not in urls:
                if name == "postgres":
                    urls[name] = stack.enter_context(new_server(full_page_writes="off")).url("loom_app")
                else:
                    check_installed()
                    urls[name] = stack.enter_context(redis()).url()
            return urls[name]

        yield url


@pytest.fixture(params=BACKENDS)
def place(request, servers, tmp_path) -> str:
    """The URL of a store; that of a server is shared by all tests."""
    return place_of(request.param, servers, tmp_path)


@pytest.fixture(params=BACKENDS[1:])
def lasting_place(request, servers, tmp_path) -> str:
    """The same, of the stores that several processes can use."""
    return place_of(request.param, servers, tmp_path)


def place_of(backend: str, servers: Callable[[str], str], folder: Path) -> str:
    if backend in {"postgres", "redis"}:
        return servers(backend)
    return backend if backend == "inmemory" else f"{backend}:{folder}/sessions"


@pytest.fixture
def new_user() -> Callable[[], str]:
    """A user that nobody else has, for stores that tests share."""
    return lambda: f"user-{next(_numbers)}"
