"""The description of the server is right: requests made from it, good and bad, never break it.

Schemathesis makes the requests against a real `loom serve`; `LOOM_EXAMPLES` sets how many for each route.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from loom.server.http.app import describe

EXAMPLES = int(os.environ.get("LOOM_EXAMPLES", "12"))
schema = schemathesis.openapi.from_dict(describe())


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("served")
    command = [sys.executable, "-m", "loom", "serve", "--url", f"sqlite:{folder}/m.db", "--port", "0", "--json"]
    command += ["--tokens", str(folder / "tokens.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.send_signal(signal.SIGINT)


@schema.parametrize()  # pyright: ignore[reportUntypedFunctionDecorator]
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_no_request_breaks_the_server_or_its_description(case: Any, address: str) -> None:
    # A text that is allowed by its length can still be refused, a blank name for one, and says so with a 422.
    response = case.call(base_url=address)
    if response.status_code != 413:  # a list that is too long may be too large as well, which is said first
        case.validate_response(response, excluded_checks=[positive_data_acceptance])
