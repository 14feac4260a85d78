"""What tests of Chroma share."""

import pytest

from loom.testing.servers.chroma import chroma


@pytest.fixture(scope="module")
def chroma_url():
    """The URL of a server that the tests of one file share."""
    with chroma() as url:
        yield url
