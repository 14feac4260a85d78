import os

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Twice the cores: most tests of stores wait for a disk or a server."""
    return 2 * (os.cpu_count() or 1)
