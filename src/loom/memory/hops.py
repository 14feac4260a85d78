"""A second hop over facts: from a fact about the subject of the question to facts about its object.

"In which city does Alice work?" finds that Alice works at Acme; that Acme is in Berlin shares no word with the question
and is found through the first fact. Only facts whose subject the question names are followed, one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from loom.core.filter import And, Eq, In
from loom.core.record import Fact, Record
from loom.core.scope import Scope
from loom.core.words import query_terms, stem, tokens
from loom.memory.candidates import is_candidate
from loom.memory.entities import USER, normalise
from loom.memory.rank import Ranked
from loom.protocols.memory_store import MemoryStore, Query

ENTITIES: Final = 16
"""Objects that are followed at most."""
FACTS: Final = 32
"""Facts about them that are read at most."""
_BEHIND: Final = 1e-3
"""How much lower a fact scores than the one that leads to it: just enough to rank right behind it."""
_SELF: Final = frozenset({"i", "im", "ive", "id", "me", "my", "mine", "we", "our", "us"})
_PLACES: Final = ("lives_in", "born_in", "from", "grew_up_in")
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    stem(word): predicates
    for words, predicates in (
        ("where city town country place located based headquarters region capital", _PLACES),
        ("work company employer job firm profession", ("works_at", "works_as")),
        ("language speak", ("speaks", "native_language", "written_in")),
        ("old age", ("age", "birthday")),
        ("birthday born", ("birthday", "born_in")),
        ("pet dog cat", ("has_pet",)),
        ("car drive", ("drives",)),
        ("eat diet food allergy", ("diet", "does_not_eat", "allergic_to", "intolerant_to", "likes", "dislikes")),
        ("wife husband spouse married partner", ("married_to", "partner")),
        ("tool software version technology database stack", ("uses", "runs", "runs_on", "built_with", "hosted_on")),
    )
    for word in words.split()
}
"""The predicates that a word of a question asks for."""


async def add_hops(
    store: MemoryStore,
    scope: Scope,
    ranked: Sequence[Ranked],
    records: dict[str, Record],
    *,
    question: str,
    query: Query,
) -> list[Ranked]:
    """The ranking with the facts of a second hop, which are added to `records`: the signal `hop`.

    The first hop is the ranking itself, so a question that names no known subject costs nothing; otherwise the hop
    costs one search. A fact that the question asks for ranks right behind the one that leads to it, others at the end.
    """
    leads = {} if query.history else _leads(question, ranked, records)
    if not leads:
        return list(ranked)
    names = tuple(dict.fromkeys(name for object in leads for name in (object, object.lower())))
    where = And(*([query.where] if query.where else []), Eq("kind", "fact"), In("subject", names))
    found = await store.search(scope, replace(query, text="", vector=None, where=where, limit=FACTS))
    facts = [hit.item for hit in found if isinstance(hit.item, Fact) and not is_candidate(hit.item)]
    by_name = {normalise(object): lead for object, lead in leads.items()}
    led = [(fact, lead) for fact in facts if (lead := by_name.get(normalise(fact.subject))) is not None]
    records |= {fact.id: fact for fact, _ in led}
    return _merge(ranked, list(_score(question, led, ranked)))


def _leads(question: str, ranked: Iterable[Ranked], records: Mapping[str, Record]) -> dict[str, Ranked]:
    """The objects of facts about the subjects that the question names, each with the best of these facts."""
    words = tokens(question)
    stems = {stem(word) for word in words}
    is_own = not _SELF.isdisjoint(words)
    leads: dict[str, Ranked] = {}
    for one in ranked:
        fact = records[one.id]
        if not isinstance(fact, Fact) or not fact.object[:1].isupper():
            continue  # names begin with a capital letter
        is_named = is_own if normalise(fact.subject) == USER else stems.issuperset(query_terms(fact.subject))
        if is_named and normalise(fact.object) != normalise(fact.subject):
            leads.setdefault(fact.object, one)
        if len(leads) == ENTITIES:
            break
    return leads


def _score(question: str, led: Iterable[tuple[Fact, Ranked]], ranked: Sequence[Ranked]) -> Iterator[Ranked]:
    stems = {stem(word) for word in tokens(question)}
    wanted = {predicate for word in stems for predicate in _KINDS.get(word, ())}
    lowest = min(r.score for r in ranked) - _BEHIND
    for fact, lead in led:
        is_wanted = fact.predicate in wanted or not stems.isdisjoint(query_terms(fact.predicate))
        score = lead.score - _BEHIND if is_wanted else lowest
        yield Ranked(fact.id, score, {"hop": score})


def _merge(ranked: Sequence[Ranked], hops: Sequence[Ranked]) -> list[Ranked]:
    """Both lists in one order; a fact in both keeps the better score."""
    best = {r.id: r for r in ranked}
    for hop in hops:
        known = best.get(hop.id)
        if known is None:
            best[hop.id] = hop
        elif known.score < hop.score:
            best[hop.id] = Ranked(hop.id, hop.score, {**known.why, "hop": hop.score - known.score})
    return sorted(best.values(), key=lambda r: -r.score)
