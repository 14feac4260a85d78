"""The base install resolves from wheels alone on every Python and system that Loom names, and stays small."""

import json
import re
import tomllib

import pytest

from scripts.resolves import PYTHONS, ROOT, SYSTEMS, TABLE, base_dependencies, find_uv, resolve_all

MOST_PACKAGES = 18
CELLS = [(system, python) for system in SYSTEMS for python in PYTHONS]
HELD = json.loads(TABLE.read_text("utf-8"))
NO_INDEX = re.compile(
    r"dns error|Failed to fetch|Could not connect|network|offline|not found in the cache", re.IGNORECASE
)


@pytest.mark.parametrize(("system", "python"), CELLS)
def test_the_table_of_its_date_names_few_packages_for_every_system(system, python):
    names = HELD["packages"][system][python]
    assert 0 < len(names) <= MOST_PACKAGES, f"as of {HELD['date']}"


def test_the_table_is_of_the_dependencies_that_are_asked_for_now():
    assert HELD["asked"] == base_dependencies(), "run `python -m scripts.resolves --update`"


def test_it_resolves_from_wheels_today():
    # The newest Python is the one that packages lack wheels for; the workflow asks for all of them.
    uv = find_uv()
    if uv is None:
        pytest.skip(f"uv is not installed; the table of {HELD['date']} is checked")
    table = resolve_all(uv, PYTHONS[-1:])
    problems = [problem for row in table.values() for _, problem in row.values() if problem]
    if any(map(NO_INDEX.search, problems)):
        pytest.skip(f"no package index can be reached; the table of {HELD['date']} is checked")
    assert problems == []
    assert all(0 < len(names) <= MOST_PACKAGES for row in table.values() for names, _ in row.values())


def test_the_classifiers_name_the_pythons_that_are_tried():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    assert [line.rpartition(" ")[2] for line in named if re.search(r":: 3\.\d+$", line)] == list(PYTHONS)
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    listed = ", ".join(f'"{python}"' for python in PYTHONS)
    assert workflow.count(f"python: [{listed}]") == 2


def test_actions_are_pinned_by_hash_and_no_job_may_write():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    used = re.findall(r"uses: (\S+)", workflow)
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used)
    assert "permissions: {}\n" in workflow
    assert "write" not in re.findall(r"^ +(?:contents|id-token|packages): (\w+)", workflow, re.MULTILINE)
