"""What programs add to a person's words, and the times that they write."""

import pytest

from loom.traces.transcript import time_of, without_harness

R = "<system-reminder>{}</system-reminder>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hi.", "Hi."),
        (f"Hi. {R.format('x')}", "Hi."),
        (f"{R.format('a')}\nHi.\n{R.format('b')}", "Hi."),
        (f"Hi. {R.format('it says ' + R.format('y') + ' here')} Bye.", "Hi.  Bye."),
        (R.format("x") * 3, ""),
        ("What is the <system-reminder> tag for?", "What is the <system-reminder> tag for?"),
        ("<system-reminder> that was cut off", ""),
        ("<ide_opened_file>The user opened x.py</ide_opened_file>Fix it.", "Fix it."),
        ("<command-name>/clear</command-name>", ""),
        ("  \n<local-command-stdout>x</local-command-stdout>", ""),
        ("Use <command-name> in the docs.", "Use <command-name> in the docs."),
        ("<environment_context>\n<cwd>/x</cwd>\n</environment_context>", ""),
        ("[Request interrupted by user for tool use]", ""),
        ("<div>my page</div>", "<div>my page</div>"),
        ("<skills> is the name of my table", "<skills> is the name of my table"),
        ("a < b and c > d", "a < b and c > d"),
        ("", ""),
    ],
)
def test_what_the_program_added_goes_and_the_words_stay(text, words):
    assert without_harness(text) == words


@pytest.mark.parametrize("text", ["<system-reminder>" * 20_000, R.format("<system-reminder>" * 20_000), "</" * 100_000])
def test_many_tags_take_time_in_proportion(text):
    assert "<system-reminder>" not in without_harness(f"{text}") or text.startswith("</")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2023-11-14T22:13:20Z", 1.7e9),
        ("2023-11-14T22:13:20", 1.7e9),
        ("2023-11-14T23:13:20+01:00", 1.7e9),
        (1_700_000_000, 1.7e9),
        (1_700_000_000_000, 1.7e9),
        ("1700000000000000000", 1.7e9),
        ("1950-01-01", -631152000.0),
        (-5, -5.0),
        (True, None),
        (float("nan"), None),
        (10**30, None),
        ("soon", None),
        ("9" * 5000, None),
        ("\u0663\u0663", None),
        (None, None),
        ([], None),
    ],
)
def test_times_of_every_form(value, seconds):
    assert time_of(value) == seconds
