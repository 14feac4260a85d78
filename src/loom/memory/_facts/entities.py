"""Normalised names of subjects, predicates and objects, and aliases of entities.

The keys are for comparing. The original spelling stays in the fact, for display.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal

from loom.core.record import Cardinality, Fact
from loom.text.words import normalised

USER: Final = "user"
"""The key of the person whose memory this is."""

_SELF: Final = frozenset({"i", "me", "my", "mine", "myself", "user", "we", "us", "speaker", "human"})
_APOSTROPHES: Final = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'", "\u00b4": "'", "`": "'"})
_LEADING: Final = re.compile(r"^(?:(?:an?|the|my|our)\s+)+", re.IGNORECASE)
_SPACE: Final = re.compile(r"\s+")
_EDGE: Final = ' \t\r\n.,;:!?"()[]{}<>*_\u201c\u201d\u00ab\u00bb'
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_WORD: Final = re.compile(r"[\W_]+")

_PREDICATES: Final[dict[str, str]] = {
    alias: name
    for name, aliases in {
        "lives_in": "live_in living_in lived_in moved_to move_to relocated_to based_in resides_in reside_in "
        "lives_at home_city hometown_now residence current_city city_of_residence is_living_in is_based_in "
        "headquartered_in is_headquartered_in located_in is_located_in",
        "works_at": "work_at works_for work_for working_at working_for employed_at employed_by employer joined "
        "started_at company works_in_company is_employed_by",
        "works_as": "work_as working_as job job_title occupation profession role employed_as is_employed_as",
        "name": "is_called is_named named called full_name first_name goes_by_name",
        "also_called": "alias aka also_known_as nickname goes_by known_as is_also_called",
        "age": "is_aged aged years_old age_in_years",
        "birthday": "born_on birth_date birthdate date_of_birth dob was_born_on",
        "born_in": "birthplace place_of_birth was_born_in",
        "married_to": "spouse husband wife is_married_to",
        "email": "email_address e_mail mail_address",
        "phone": "phone_number mobile telephone telephone_number",
        "likes": "like loves love enjoys enjoy is_fond_of fond_of likes_to",
        "dislikes": "dislike hates hate does_not_like doesn_t_like cannot_stand",
        "owns": "own has_a owner_of possesses",
        "has_pet": "pet pets has_pets owns_pet has_dog has_cat",
        "speaks": "speak language languages speaks_language speaking",
        "allergic_to": "allergy allergies is_allergic_to has_allergy",
        "visited": "has_visited travelled_to traveled_to has_been_to been_to went_to",
        "knows": "know is_friends_with",
        "diet": "dietary_preference follows_diet eats_diet",
        "plans": "plan planning is_planning plans_to",
        "prefers": "prefer preference preferred",
    }.items()
    for alias in aliases.split()
}

_SINGLE: Final = frozenset(
    {
        *("lives_in", "works_at", "works_as", "name", "age", "birthday", "born_in", "married_to", "email", "phone"),
        *("address", "diet", "gender", "nationality", "marital_status", "time_zone", "native_language", "height"),
        *("weight", "pronouns", "engaged_to", "partner", "mother", "father", "current_project", "written_in"),
    }
)
_MULTI: Final = frozenset(
    {
        *("likes", "dislikes", "knows", "owns", "speaks", "visited", "has_pet", "allergic_to", "also_called", "plans"),
        *("prefers", "sister", "brother", "son", "daughter", "child", "friend", "cousin", "aunt", "uncle", "niece"),
        *("nephew", "colleague", "hobby", "interested_in", "studied", "attended", "skill", "plays", "learning"),
        *("uses", "runs", "runs_on", "built_with", "hosted_on", "depends_on", "does_not_eat", "intolerant_to"),
    }
)


@lru_cache(maxsize=8192)
def normalise(name: str) -> str:
    """The key of a person or a thing: the same for every case, width, article, possessive and spacing.

    I, me, my and the user are one person. A name that consists of such words only keeps them.
    """
    text = _SPACE.sub(" ", normalised("NFKC", name).translate(_APOSTROPHES)).strip()
    text = normalised("NFKC", (text.strip(_EDGE) or text).casefold())
    if text in _SELF:
        return USER
    bare = _LEADING.sub("", text)
    bare = bare.removesuffix("'s") if bare.endswith("'s") else bare.removesuffix("'")
    bare = bare.strip(_EDGE) or text
    return USER if bare in _SELF else bare


@lru_cache(maxsize=2048)
def predicate_key(predicate: str) -> str:
    """The canonical name of a predicate: in snake case, and the vocabulary's word if it has one."""
    text = normalised("NFKC", predicate).translate(_APOSTROPHES)
    text = _NOT_WORD.sub("_", _CAMEL.sub("_", text)).strip("_").casefold()
    text = re.sub(r"^(?:is_|am_)?(?:currently|now)_(?=.)", "", text)
    text = re.sub(r"^favou?rite_?(?=.)", "favourite_", text)
    return _PREDICATES.get(text, text) or predicate


def cardinality_of(predicate: str, stated: Cardinality = "inferred") -> Literal["single", "multi"]:
    """Whether a predicate has one value at a time: as stated, else by the table, else multi."""
    if stated != "inferred":
        return stated
    return "single" if is_known_single(predicate) else "multi"


def is_known_single(predicate: str) -> bool:
    """Whether the table lists a predicate with one value at a time."""
    key = predicate_key(predicate)
    return key in _SINGLE or key.startswith("favourite_")


def is_known_multi(predicate: str) -> bool:
    """Whether the table lists a predicate with many values."""
    return predicate_key(predicate) in _MULTI


class Aliases:
    """Names of the same entity, as a union-find structure built from facts.

    `also_called` facts join subject and object; a `name` fact does if its subject is the user.
    """

    __slots__ = ("_parent",)

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> Aliases:
        """The aliases that these facts declare; retired facts are ignored."""
        aliases = cls()
        for fact in facts:
            predicate, subject = predicate_key(fact.predicate), normalise(fact.subject)
            if fact.superseded_at is None and (predicate == "also_called" or (predicate == "name" and subject == USER)):
                aliases._join(subject, normalise(fact.object))
        return aliases

    def key(self, name: str) -> str:
        """The key of the entity that has this name."""
        return self._root(normalise(name))

    def _root(self, key: str) -> str:
        while (parent := self._parent.get(key, key)) != key:
            key = parent
        return key

    def _join(self, one: str, other: str) -> None:
        one, other = self._root(one), self._root(other)
        # The user is the root of their group, else the first name in the alphabet, whatever the order of the facts.
        head, tail = sorted((one, other), key=lambda key: (key != USER, key))
        if head != tail:
            self._parent[tail] = head


NO_ALIASES: Final = Aliases()
