"""What tests of the vector engines share."""

import os
from importlib.util import find_spec

import pytest


def needs_package(name):
    """Skip where the package is not installed; in CI it has to be, and the test fails without it."""
    is_missing = find_spec(name) is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(is_missing, reason=f"the package {name} is not installed")
