"""The page of limits says what the code holds."""

from loom.core import checks
from tests.docs.pages import ROOT


def test_the_page_of_limits_is_current():
    page = (ROOT / "docs/reference/limits.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| `")]
    told = {name.strip("| `"): value for name, value in rows}
    held = {name: f"{value:,}" for name, value in vars(checks).items() if name.isupper() and isinstance(value, int)}
    assert told == {name: value for name, value in held.items() if not name.startswith("_")}
