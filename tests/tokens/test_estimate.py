"""The estimate: its laws, and how close it comes."""

from __future__ import annotations

import inspect
import json
import json.decoder

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.message import TextPart
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import EstimateCounter, estimate_tokens

# ruff: noqa: RUF001  the letters of other scripts are the point here
CHINESE = "我们今天去了北京的故宫博物院，参观了许多珍贵的文物。天气非常好，大家都很高兴，晚上又一起吃了饭。" * 8
RUSSIAN = "Сегодня мы ходили в музей и видели много старых книг, а вечером вместе ужинали дома у наших друзей. " * 8
ARABIC = "ذهبنا اليوم إلى المتحف ورأينا الكثير من الكتب القديمة، وفي المساء تناولنا العشاء معا في البيت. " * 8
JAPANESE = "今日はみんなで博物館に行って、古い本をたくさん見ました。夜は友達の家で一緒に晩ご飯を食べました。" * 8
PROSE = (
    "The committee met again on Thursday, and after two hours it agreed on very little. Most members wanted to "
    "wait for the report; the others thought that waiting had already cost the town a whole summer. "
) * 6
RECORDS = json.dumps(
    [
        {"id": i * 7919, "name": f"user_{i}", "ok": i % 2 == 0, "ratio": i / 7, "at": "2026-11-15T03:12:44Z"}
        for i in range(40)
    ]
)
CODE = inspect.getsource(json.decoder)
SAMPLES = {
    "prose": PROSE,
    "code": CODE,
    "json": RECORDS,
    "chinese": CHINESE,
    "japanese": JAPANESE,
    "russian": RUSSIAN,
    "arabic": ARABIC,
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_it_is_close_to_the_real_vocabulary(kind: str) -> None:
    splintr = pytest.importorskip("splintr")
    truth = len(splintr.Tokenizer.from_pretrained("o200k_base").encode_ordinary(SAMPLES[kind]))
    assert estimate_tokens(SAMPLES[kind]) == pytest.approx(truth, rel=0.27)  # one sentence strays further than 4 KB do


def test_it_beats_four_characters_for_a_token_where_that_is_worst() -> None:
    splintr = pytest.importorskip("splintr")
    encode = splintr.Tokenizer.from_pretrained("o200k_base").encode_ordinary
    for text in (CHINESE, JAPANESE, RECORDS):
        truth = len(encode(text))
        assert abs(estimate_tokens(text) - truth) < 0.4 * abs(len(text) / 4 - truth)


def test_known_values() -> None:
    counter = EstimateCounter()
    assert counter.count("") == 0
    assert counter.count("hello") == 1
    assert counter.count("x") == 1
    assert counter.count("The cat sat on the mat.") == 6
    assert counter.count("中" * 100) == 85


def test_the_scale_multiplies() -> None:
    assert EstimateCounter(1.5).count(PROSE) == pytest.approx(1.5 * EstimateCounter().count(PROSE), abs=1)


def test_it_is_a_token_counter() -> None:
    counter = EstimateCounter(error=0.3, name="a name")
    assert isinstance(counter, TokenCounter)
    assert (counter.name, counter.error) == ("a name", 0.3)


@given(st.text(max_size=400))
def test_never_negative_and_deterministic(text: str) -> None:
    first = EstimateCounter().count(text)
    assert first == EstimateCounter().count(text)
    assert first >= (1 if text else 0)
    assert first <= 4 * len(text) + 1


@given(st.lists(st.sampled_from(list(SAMPLES.values())), min_size=2, max_size=4))
def test_additive_over_parts_within_the_error(texts: list[str]) -> None:
    counter = EstimateCounter()
    apart = sum(map(counter.count, texts))
    assert counter.count("".join(texts)) == pytest.approx(apart, rel=counter.error)


def test_lone_surrogates_and_every_character_are_counted() -> None:
    assert EstimateCounter().count("\ud800 broken") >= 1
    assert EstimateCounter().count("".join(map(chr, range(0x3000)))) > 3000


def test_a_long_text_is_counted_like_its_blocks() -> None:
    assert estimate_tokens(PROSE * 200) == pytest.approx(200 * estimate_tokens(PROSE), rel=0.01)


def test_unchanged_parts_are_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def watched(text: str) -> float:
        counted.append(text)
        return estimate_tokens(text)

    monkeypatch.setattr("loom.text.tokens.estimate_tokens", watched)
    counter = EstimateCounter()
    parts = [TextPart(f"{i} {PROSE}") for i in range(100)]
    for part in [*parts, *parts]:
        counter.count_part(part)
    assert counted == [part.text for part in parts]
