"""What a model is asked to read, and what not: nothing is paid for courtesy."""

from datetime import UTC, datetime

import pytest

from loom.core.record import Episode, Provenance
from loom.memory._write.extract_llm import states_something, worth_reading

NOTHING = [
    "Thanks!",
    "thank you so much, that's very helpful",
    "Ok.",
    "Great, thanks a lot! Have a nice day :)",
    "Hi there! How are you?",
    "Good morning",
    "Bye, see you tomorrow.",
    "haha ok",
    "\U0001f44d\U0001f44d",
    "?!",
    "...",
    "",
    "Where do I live?",
    "What is the capital of France? And of Spain?",
    "Thanks! Can you say that again?",
    "\u6771\u4eac\u306f\u3069\u3053\u3067\u3059\u304b\uff1f",
]
SOMETHING = [
    "I live in Tokyo.",
    "yes",
    "No.",
    "Thanks! I'm allergic to nuts.",
    "My sister is called Anna. What should I buy her?",
    "Always answer in French.",
    "Tokyo",
    "4711",
    "Merci, j'habite \u00e0 Lyon",
    "What could I cook tonight for my sister Anna, who is allergic to nuts and has just moved to Lyon?",
    "ok " * 300,
]


@pytest.mark.parametrize("text", NOTHING)
def test_courtesy_and_questions_teach_nothing(text):
    assert not states_something(text)


@pytest.mark.parametrize("text", SOMETHING)
def test_what_may_teach_something_is_read(text):
    assert states_something(text)


def said(text, origin="user"):
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Episode(id="e", text=text, at=at, recorded_at=at, provenance=Provenance(origin))


def test_what_only_the_assistant_says_teaches_nothing():
    assert not worth_reading([said("Thanks!"), said("You live in Tokyo.", "assistant")])
    assert worth_reading([said("I live in Tokyo."), said("Nice.", "assistant")])
    assert worth_reading([said("Opening hours: 9 to 5", "file")])
    assert not worth_reading([])
