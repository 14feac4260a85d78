import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loom.core.clock import RecordIds
from loom.core.record import Claim, Fact, Provenance
from loom.errors import NotFound, UsageError
from loom.memory._facts.entities import Aliases, normalise
from loom.memory._facts.facts import FactChange, assert_claim, resettle, restore, retract, slot_of
from loom.testing.fakes import FakeClock

USER = Provenance("user")
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def day(n: int) -> datetime:
    return T0 + timedelta(days=n)


def claim(
    object: str, start: int | None = None, end: int | None = None, predicate: str = "lives_in", **changes
) -> Claim:
    sources = changes.pop("sources", (f"e{start}{object}",))
    return Claim(
        subject=changes.pop("subject", "user"),
        predicate=predicate,
        object=object,
        sources=sources,
        valid_from=None if start is None else day(start),
        valid_until=None if end is None else day(end),
        **changes,
    )


def current(facts: Iterable[Fact], at: datetime, known_at: datetime) -> tuple[Fact, ...]:
    """The facts that were true at `at`, as believed at `known_at`, in a stable order."""
    found = [fact for fact in facts if fact.is_current(at, known_at)]
    return tuple(sorted(found, key=lambda f: (*slot_of(f), normalise(f.object), f.id)))


def applied(facts: Iterable[Fact], change: FactChange) -> tuple[Fact, ...]:
    """The facts after a change: by id, the newest wins."""
    return tuple({fact.id: fact for fact in (*facts, *change.put)}.values())


class Book:
    """Facts that live through claims, one hour apart."""

    def __init__(self):
        self.clock = FakeClock(day(100))
        self.ids = RecordIds(self.clock, entropy=bytes)
        self.facts: tuple[Fact, ...] = ()

    def say(self, *claims: Claim, **options):
        change = None
        for one in claims:
            self.clock.advance(timedelta(hours=1))
            change = assert_claim(self.facts, one, now=self.clock.now(), ids=self.ids, provenance=USER, **options)
            self.facts = applied(self.facts, change)
        return change

    def do(self, act, fact: Fact):
        self.clock.advance(timedelta(hours=1))
        change = act(self.facts, fact, now=self.clock.now())
        self.facts = applied(self.facts, change)
        return change

    def at(self, n: int, known: datetime | None = None) -> list[str]:
        return [f.object for f in current(self.facts, day(n), known or self.clock.now())]

    def line(self, days: int = 30) -> list[list[str]]:
        return [self.at(n) for n in range(-1, days)]

    def live(self) -> list[Fact]:
        return [f for f in self.facts if f.superseded_at is None]


# -- single-valued --------------------------------------------------------------------------------------------


def test_another_object_closes_the_older_one_on_both_axes():
    book = Book()
    assert book.say(claim("Tokyo", 1)).what == "new"
    before = book.clock.now()
    change = book.say(claim("Osaka", 11))
    assert change.what == "supersedes"
    assert "Tokyo" in change.reason
    assert [book.at(n) for n in (0, 1, 10, 11, 50)] == [[], ["Tokyo"], ["Tokyo"], ["Osaka"], ["Osaka"]]
    assert book.at(50, known=before) == ["Tokyo"]
    old = next(f for f in book.facts if f.object == "Tokyo" and f.superseded_at is not None)
    osaka = next(f for f in book.facts if f.object == "Osaka")
    assert (old.valid_until, old.superseded_by, old.superseded_at) == (None, osaka.id, book.clock.now())
    closed = next(f for f in book.live() if f.object == "Tokyo")
    assert (closed.valid_from, closed.valid_until, closed.recorded_at) == (day(1), day(11), book.clock.now())


def test_the_seeds_out_of_order_case_and_there_and_back():
    for order in ("ACB", "CBA", "BAC"):
        book = Book()
        book.say(*(claim(name, {"A": 1, "B": 11, "C": 21}[name]) for name in order))
        spans = sorted((f.object, f.valid_from, f.valid_until) for f in book.live())
        assert spans == [("A", day(1), day(11)), ("B", day(11), day(21)), ("C", day(21), None)]
    book = Book()
    book.say(claim("A", 1), claim("B", 3), claim("A", 5))
    assert [book.at(n) for n in (1, 3, 5)] == [["A"], ["B"], ["A"]]


def test_a_bounded_claim_splits_the_one_around_it():
    book = Book()
    change = book.say(claim("Tokyo", 1), claim("Paris", 5, 8))
    assert change.what == "split"
    assert [book.at(n) for n in (1, 4, 5, 7, 8, 20)] == [
        ["Tokyo"],
        ["Tokyo"],
        ["Paris"],
        ["Paris"],
        ["Tokyo"],
        ["Tokyo"],
    ]


def test_a_back_dated_claim_is_bounded_by_what_came_later():
    book = Book()
    change = book.say(claim("Osaka", 11), claim("Tokyo", 1))
    assert change.what == "bounded"
    assert (book.at(5), book.at(11)) == (["Tokyo"], ["Osaka"])
    assert [(f.valid_from, f.valid_until) for f in book.live() if f.object == "Tokyo"] == [(day(1), day(11))]


def test_a_claim_without_dates_counts_from_now():
    book = Book()
    book.say(claim("Tokyo", sources=("e1",)))
    assert book.live()[0].valid_from == book.clock.now()


def test_equal_dates_are_decided_by_the_source_not_by_the_order():
    for order in (0, 1):
        book = Book()
        book.say(*[claim("Tokyo", 1, sources=("e1",)), claim("Osaka", 1, sources=("e2",))][:: 1 - 2 * order])
        assert book.at(1) == ["Osaka"]


# -- again ----------------------------------------------------------------------------------------------------


def test_the_same_claim_five_times_is_one_fact_with_five_sources():
    book = Book()
    for n in range(5):
        book.say(claim("French", n, predicate="speaks", sources=(f"e{n}",), confidence=0.5 + n / 10))
    [fact] = book.live()
    assert (fact.sources, fact.confidence, fact.valid_from) == (("e0", "e1", "e2", "e3", "e4"), 0.9, day(0))


def test_the_same_source_again_writes_nothing():
    book = Book()
    book.say(claim("Tokyo", 1))
    change = book.say(claim("  the TOKYO. ", 1, sources=("e1Tokyo",), predicate="Based In", subject="I"))
    assert (change.what, change.put) == ("nothing", ())


def test_a_new_source_for_the_same_moment_is_added_in_place():
    book = Book()
    book.say(claim("Tokyo", 1, sources=("e1",)))
    change = book.say(claim("Tokyo", 1, sources=("e2",)))
    assert change.what == "again"
    assert [sorted(f.sources) for f in change.put] == [["e1", "e2"]]
    assert len(book.facts) == 1


def test_overlapping_claims_widen_the_interval_and_history_remembers_the_narrow_one():
    book = Book()
    book.say(claim("Tokyo", 3, 8))
    narrow = book.clock.now()
    change = book.say(claim("Tokyo", 1, 5))
    assert change.what == "again"
    [fact] = book.live()
    assert (fact.valid_from, fact.valid_until) == (day(1), day(8))
    assert (book.at(2, known=narrow), book.at(2)) == ([], ["Tokyo"])


def test_a_restatement_is_not_lost_when_something_older_is_learnt_later():
    book = Book()
    book.say(claim("Tokyo", 1), claim("Tokyo", 9), claim("Osaka", 5))
    assert [book.at(n) for n in (1, 5, 9)] == [["Tokyo"], ["Osaka"], ["Tokyo"]]


# -- multi-valued and inferred --------------------------------------------------------------------------------


def test_multi_valued_predicates_coexist():
    book = Book()
    book.say(*(claim(name, n, predicate="speaks") for n, name in enumerate(("English", "French", "Korean"))))
    assert book.at(5) == ["English", "French", "Korean"]


def test_an_unknown_predicate_is_multi_until_a_claim_says_that_it_changed():
    book = Book()
    book.say(claim("Volvo", 1, predicate="drives"), claim("Fiat", 2, predicate="drives"))
    assert book.at(3) == ["Fiat", "Volvo"]
    assert book.say(claim("Tesla", 4, predicate="drives", cardinality="single")).what == "supersedes"
    assert (book.at(3), book.at(4)) == (["Fiat", "Volvo"], ["Tesla"])


def test_what_is_stated_beats_the_table():
    book = Book()
    book.say(claim("Tokyo", 1, cardinality="multi"), claim("Osaka", 2, cardinality="multi"))
    assert book.at(3) == ["Osaka", "Tokyo"]


# -- endings --------------------------------------------------------------------------------------------------


def test_a_negation_closes_without_a_new_object():
    book = Book()
    book.say(claim("vegan", 1, predicate="diet"))
    change = book.say(claim("vegan", None, 6, predicate="diet"))
    assert change.what == "ends"
    assert [book.at(n) for n in (0, 1, 5, 6)] == [[], ["vegan"], ["vegan"], []]
    book.say(claim("vegan", 9, predicate="diet"))
    assert (book.at(8), book.at(9)) == ([], ["vegan"])


def test_used_to_with_nothing_known_says_that_it_was_so():
    book = Book()
    book.say(claim("Tokyo", 4))
    book.say(claim("Paris", None, 9))
    assert [book.at(n) for n in (0, 3, 4, 12)] == [["Paris"], ["Paris"], ["Tokyo"], ["Tokyo"]]


def test_ending_one_value_leaves_the_others_alone():
    book = Book()
    book.say(claim("tea", 1, predicate="likes"), claim("jazz", 1, predicate="likes"))
    book.say(claim("tea", None, 3, predicate="likes"))
    assert book.at(4) == ["jazz"]


# -- who may retire whom --------------------------------------------------------------------------------------


def test_bob_in_any_spelling_is_one_subject():
    book = Book()
    book.say(claim("Paris", 1, subject="bob"), claim("Rome", 2, subject="Bob"))
    assert book.at(3) == ["Rome"]
    assert {f.subject for f in book.live() if f.object == "Rome"} == {"Bob"}


def test_other_subjects_and_predicates_are_never_touched():
    rng = random.Random(7)
    book = Book()
    book.say(claim("Tokyo", 1), claim("Acme", 1, predicate="works_at"), claim("Rome", 1, subject="Anna"))
    kept = [f for f in book.facts if f.subject == "Anna" or f.predicate == "works_at"]
    for n in range(300):
        predicate = rng.choice(["lives_in", "moved to", "drives", "livesIn"])
        book.say(
            claim(f"X{n % 9}", rng.randrange(20), rng.choice([None, 25]), predicate=predicate, cardinality="single")
        )
    assert [f for f in book.facts if f.subject == "Anna" or f.predicate == "works_at"] == kept


def test_an_alias_joins_two_names():
    book = Book()
    book.say(claim("Alice", 0, predicate="name"), claim("Tokyo", 1))
    aliases = Aliases.of(book.facts)
    book.say(claim("Osaka", 2, subject="Alice"), aliases=aliases)
    assert [f.object for f in book.live() if f.predicate == "lives_in" and f.valid_until is None] == ["Osaka"]


def test_a_clock_that_was_set_back_cannot_end_a_belief_before_it_began():
    book = Book()
    book.say(claim("Tokyo", 1))
    book.clock.set(day(50))
    book.say(claim("Osaka", 2))
    assert [book.at(3, known=day(101))] == [["Osaka"]]
    assert all(f.superseded_at is None or f.superseded_at >= f.recorded_at for f in book.facts)


def test_an_interval_that_ends_before_it_starts_is_refused():
    with pytest.raises(UsageError, match="the end lies before the start"):
        Book().say(claim("Tokyo", 5, 1))


def test_a_merged_version_is_trusted_only_if_all_its_statements_are():
    book = Book()
    book.say(claim("Tokyo", 1, 5))
    trusted = tuple(replace(f, provenance=Provenance("user", trusted=True)) for f in book.facts)
    change = assert_claim(
        trusted, claim("Tokyo", 3, 8), now=book.clock.now(), ids=book.ids, provenance=Provenance("web")
    )
    [fact] = [f for f in change.put if f.superseded_at is None]
    assert fact.provenance == Provenance("derived", trusted=False)


# -- undo -----------------------------------------------------------------------------------------------------


def test_retracting_lets_what_was_closed_hold_again():
    book = Book()
    book.say(claim("Tokyo", 1), claim("Osaka", 11))
    change = book.do(retract, next(f for f in book.facts if f.object == "Osaka"))
    assert change.what == "retracted"
    assert (book.at(5), book.at(20)) == (["Tokyo"], ["Tokyo"])
    assert book.say(claim("Osaka", 11)).what == "nothing"
    assert book.say(claim("Osaka", 11, sources=("e99",))).what == "supersedes"
    with pytest.raises(NotFound, match="not among the facts"):
        retract((), book.facts[0], now=day(1))


STARTS = st.integers(0, 6)
CLAIMS = st.builds(
    lambda name, start, length, kind, source: claim(
        name,
        None if kind == "ending" else start,
        start if kind == "ending" else start + length if kind == "bounded" else None,
        predicate="drives",
        cardinality="multi" if kind == "multi" else "single",
        sources=(f"e{source}",),
    ),
    st.sampled_from("ABC"),
    STARTS,
    st.integers(0, 4),
    st.sampled_from(["open", "open", "bounded", "ending", "multi"]),
    st.integers(0, 9),
)


@given(st.lists(CLAIMS, max_size=7).flatmap(lambda claims: st.tuples(st.just(claims), st.permutations(claims))))
@settings(max_examples=300, deadline=None)
def test_the_order_of_claims_decides_nothing(orders):
    books = [Book(), Book()]
    for book, claims in zip(books, orders, strict=True):
        book.say(*claims)
    assert books[0].line(13) == books[1].line(13)
    for book, claims in zip(books, orders, strict=True):
        line, before = book.line(13), len(book.facts)
        book.say(*claims)
        assert (book.line(13), len(book.facts)) == (line, before)


def _drives(name: str, source: str) -> Claim:
    return claim(name, 0, predicate="drives", sources=(source,))


@given(st.lists(CLAIMS, max_size=4), CLAIMS, CLAIMS, st.booleans())
@example([_drives("A", "e0"), _drives("B", "e0")], _drives("B", "e1"), _drives("A", "e1"), True)  # B is said again
@settings(max_examples=300, deadline=None)
def test_two_who_decide_at_once_settle_on_what_either_order_gives(claims, one, other, first):
    book, after = Book(), Book()
    book.say(*claims)
    assert resettle(book.facts, book.facts, now=book.clock.now()) == ()
    after.say(*claims, one, other)
    book.clock.advance(timedelta(hours=1))
    changes = [
        assert_claim(
            book.facts,
            said,
            now=book.clock.now(),
            ids=RecordIds(book.clock, entropy=lambda n, mark=mark: mark * n),
            provenance=USER,
        )
        for said, mark in ((one, b"a"), (other, b"b"))
    ]
    for change in changes if first else changes[::-1]:
        book.facts = applied(book.facts, change)
    book.clock.advance(timedelta(hours=1))
    both = [fact for change in changes for fact in change.put]
    settled = resettle(book.facts, both, now=book.clock.now())
    book.facts = tuple({fact.id: fact for fact in (*book.facts, *settled)}.values())
    assert book.line(13) == after.line(13)
    assert resettle(book.facts, book.facts, now=book.clock.now()) == ()


@given(st.lists(CLAIMS, max_size=5), CLAIMS)
@settings(max_examples=300, deadline=None)
def test_undo_is_exact(claims, last):
    book = Book()
    book.say(*claims)
    before, known = book.line(13), {f.id for f in book.facts}
    retired = [f for f in book.say(last).put if f.id in known and f.superseded_at is not None]
    after = book.line(13)
    said = next((f for f in book.facts if f.id not in known and "~" not in f.id), None)
    if said is None:
        return
    rivals = [f for f in retired if f.object != last.object or last.valid_from is None]
    if rivals:
        assert book.do(restore, rivals[0]).what == "restored"
        assert book.line(13) == before
        book.do(restore, said)
        assert book.line(13) == after
    shown = [f for f in book.live() if f.object == last.object]
    if shown:
        line = book.line(13)
        assert book.do(retract, shown[0]).what == "retracted"
        book.do(restore, shown[0])
        assert book.line(13) == line


# -- the grid -------------------------------------------------------------------------------------------------


def truth(claims: list[Claim], at: datetime) -> set[str]:
    """What a set of claims says of a moment, told from the claims alone and one moment at a time."""
    holds: list[tuple[datetime, str, str, bool]] = []
    low = datetime.min.replace(tzinfo=UTC)
    claims = [c for c in claims if c.valid_from is None or c.valid_from != c.valid_until]
    for one in claims:
        same = [c for c in claims if c.object == one.object]
        endings = [c.valid_until for c in same if c.valid_until is not None and c.valid_from is None]
        ends = [c.valid_until for c in same if c.valid_until is not None]
        start = one.valid_from or low
        if one.valid_from is None and any(c.valid_from is not None and c.valid_from < one.valid_until for c in same):
            continue
        stops = [end for end in (ends if one.valid_until is None else [*endings, one.valid_until]) if end > start]
        if start <= at and (at < min(stops) if stops else one.valid_until is None):
            holds.append(
                (
                    start,
                    max(c.sources[0] for c in same if c == replace(one, sources=c.sources)),
                    one.object,
                    one.cardinality == "single",
                )
            )
    last = max((h for h in holds if h[3]), default=None)
    return {h[2] for h in holds if last is None or h >= last}


def random_claim(rng: random.Random) -> Claim:
    start = rng.randrange(12)
    kind = rng.choice(["open", "open", "open", "bounded", "ending"])
    return claim(
        rng.choice("ABCD"),
        None if kind == "ending" else start,
        start + rng.randrange(6) if kind == "bounded" else start if kind == "ending" else None,
        predicate="drives",
        cardinality=rng.choice(["single", "single", "multi"]),
        sources=(f"e{rng.randrange(30):02}",),
    )


def test_bitemporal_grid_against_an_oracle():
    rng, queries, mismatches = random.Random(20260101), 0, 0
    while queries < 100_000:
        book, log = Book(), []
        said: list[Claim] = []
        for _ in range(7):
            said.append(random_claim(rng))
            book.say(said[-1])
            log.append((book.clock.now(), list(said)))
        known = [(when + step, told) for (when, told) in log for step in (timedelta(0), timedelta(minutes=59))]
        known.append((log[0][0] - timedelta(seconds=1), []))
        moments = [day(0) + timedelta(hours=12 * n) for n in range(-1, 39)]
        for at in moments:
            wanted = {len(told): truth(told, at) for _, told in known}
            for when, told in known:
                found = current(book.facts, at, when)
                queries += 1
                mismatches += {f.object for f in found} != wanted[len(told)] or len(found) != len(wanted[len(told)])
    print(f"bi-temporal grid: {queries:,} queries, {mismatches} mismatches")  # noqa: T201
    assert mismatches == 0


def test_current_gives_a_stable_order_and_survives_ties():
    book = Book()
    book.say(*(claim(name, 1, predicate="likes") for name in ("tea", "jazz", "Rome")))
    assert current(book.facts, day(2), day(200)) == current(book.facts[::-1], day(2), day(200))
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert (current(book.facts, first, last), len(current(book.facts, last, last))) == ((), 3)
