"""The check for words that readers stumble over."""

from scripts.words import ROOT, Rules, check, load_rules, main

RULES = Rules(
    words={r"\bmend(s|ed|ing)?\b": "write fix", r"(?<!there )\bis no\b(?! longer\b)": "write is not a"},
    names={r"\bseed \d": "name the behaviour"},
    quoted={"src/loom/prompt.py": ["How would you mend it?"]},
    pending=["src/loom/old/"],
)


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def found(root, rules=RULES):
    return [str(leftover) for leftover in check(root, rules)]


def test_words_are_found_in_code_and_pages(tmp_path):
    write(tmp_path, "src/loom/a.py", "x = 1\n\ndef was_mended(): ...\n")
    write(tmp_path, "docs/a.md", "This is no model. There is no other, and it is no longer there.\n")
    assert found(tmp_path, Rules(RULES.words, {}, {}, ())) == [
        "src/loom/a.py:3: 'mended'; write fix",
        "docs/a.md:1: 'is no'; write is not a",
    ]


def test_of_tests_only_the_names_count(tmp_path):
    write(tmp_path, "tests/test_seed_002.py", "MEND = 'mend'\n\nasync def test_it_is_mended():\n    mend()\n")
    assert found(tmp_path, Rules(RULES.words, RULES.names, {}, ())) == [
        "tests/test_seed_002.py:1: 'seed 0'; name the behaviour",
        "tests/test_seed_002.py:3: 'mended'; write fix",
    ]


def test_quotations_and_pending_folders_are_left_alone(tmp_path):
    write(tmp_path, "src/loom/prompt.py", "ASKED = 'How would you mend it?'\n")
    write(tmp_path, "src/loom/old/a.py", "# mend\n")
    assert found(tmp_path) == []


def test_a_quotation_that_is_gone_is_listed(tmp_path):
    write(tmp_path, "src/loom/prompt.py", "ASKED = 'How would you fix it?'\n")
    assert found(tmp_path) == [
        "src/loom/prompt.py:0: 'How would you mend it?'; no such text there; remove the quotation"
    ]


def test_this_repository_is_clean(capsys):
    assert main() == 0, capsys.readouterr().out
    assert all((ROOT / name).is_file() for name in load_rules().quoted)
