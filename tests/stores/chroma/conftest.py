"""What tests of Chroma share."""

import pytest

from loom.testing.servers import chroma


@pytest.fixture(scope="module")
def chroma_server():
    """A server that the tests of one file share."""
    with chroma() as server:
        yield server


@pytest.fixture
def chroma_url(chroma_server):
    """The URL of that server."""
    return chroma_server.url
