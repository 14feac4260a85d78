"""Rules for plain statements that people make about themselves, each over one clause."""

from __future__ import annotations

import re
from typing import Final

from loom.memory.extract.dates import SOON
from loom.memory.extract.phrases import (
    AM,
    ASIDE,
    DIET,
    HAVE,
    JOB,
    LANGUAGE,
    LANGUAGES,
    LIST,
    NAME,
    NOW,
    PERSON,
    PET,
    PLACE,
    RELATION,
    SELF,
    THING,
    WE,
    rule,
)

_FOOD: Final = (
    r"(?:(?:red |white |raw |processed )?(?:meat|pork|beef|lamb|chicken|poultry|fish|seafood|shellfish|dairy|milk|"
    r"cheese|eggs|gluten|wheat|bread|sugar|nuts|peanuts|soy|mushrooms|onions|garlic|carbs))"
)
_MODEL: Final = rf"(?P<object>(?:(?:19|20)\d\d )?{THING})"
RULES: Final = (
    rule(
        "name",
        rf"(?:[Mm]y name(?:['\u2019]s| is)|(?:You|you) can call me|(?:Please |please )?[Cc]all me) (?P<object>{NAME})",
    ),
    rule("name", rf"{AM} (?P<object>[A-Z][a-z\u00e0-\u00ff]+)", tail="$"),
    rule("lives_in", rf"{WE}{NOW} live in (?P<object>{PLACE})"),
    rule("lives_in", rf"{AM}{NOW} (?:living|based) in (?P<object>{PLACE})"),
    rule("lives_in", rf"{HAVE} (?:been living|lived) in (?P<object>{PLACE})"),
    rule(
        "lives_in", rf"(?:{WE}{NOW}|{HAVE}{NOW}) (?:moved|relocated)(?: back)? (?:from {NAME} )?to (?P<object>{PLACE})"
    ),
    rule("lives_in", rf"{WE} used to live in (?P<object>{PLACE})", ends=True),
    rule("lives_in", rf"{WE} no longer live in (?P<object>{PLACE})", ends=True),
    rule("from", rf"{AM}(?: originally)? from (?P<object>{PLACE})"),
    rule("from", rf"{AM} an? {JOB} from (?P<object>{PLACE})"),
    rule("grew_up_in", rf"{SELF} grew up in (?P<object>{PLACE})"),
    rule("works_at", rf"{SELF}{NOW} work (?:at|for) (?P<object>{NAME})(?: as an? {JOB})?"),
    rule("works_at", rf"(?:{AM}{NOW}|{HAVE} been) working (?:at|for) (?P<object>{NAME})(?: as an? {JOB})?"),
    rule("works_at", rf"(?:{SELF}|{HAVE}){NOW} (?:joined|started (?:working )?(?:at|for)) (?P<object>{NAME})"),
    rule("works_at", rf"{SELF} (?:no longer|used to) work (?:at|for) (?P<object>{NAME})", ends=True),
    rule("works_at", rf"{SELF}{NOW} (?:left|quit) my job at (?P<object>{NAME})", ends=True),
    rule("works_as", rf"{SELF}{NOW} work as an? (?P<object>{JOB})(?: (?:at|for|in) {NAME})?"),
    rule("works_as", rf"(?:{SELF}{NOW} work|{AM}{NOW} working) (?:at|for) {NAME} as an? (?P<object>{JOB})"),
    rule("works_as", rf"{AM}{NOW} (?:working as )?an? (?P<object>{JOB})(?: (?:at|for|in|from) {NAME})?"),
    rule("works_as", rf"{SELF} used to (?:be|work as) an? (?P<object>{JOB})", ends=True),
    rule("works_at", rf"{AM}{NOW} (?:working as )?an? {JOB} at (?P<object>{NAME})"),
    rule("works_at", rf"{SELF}{NOW} work as an? {JOB} (?:at|for) (?P<object>{NAME})"),
    rule("age", rf"{AM}{NOW} (?P<object>\d{{1,3}})(?: years old)", tail=f"{ASIDE}$"),
    rule("age", rf"{AM} (?P<object>\d{{2}})", tail="$"),
    rule("age", rf"{SELF}{NOW} turned (?P<object>\d{{1,3}})"),
    rule("birthday", r"[Mm]y birthday(?:['\u2019]s| is)(?: on)? (?P<object>(?=\D*\d)[\w ,-]+)", tail="$"),
    rule("birthday", r"(?:I|i) was born on (?P<object>(?=\D*\d)[\w ,-]+)", tail="$"),
    rule("born_in", rf"{SELF} was born in (?P<object>{PLACE})"),
    rule("pronouns", r"[Mm]y pronouns are (?P<object>[a-z]+(?:/[a-z]+){1,2})"),
    rule("pronouns", rf"{SELF}{NOW} (?:use|go by) (?P<object>[a-z]+/[a-z]+(?:/[a-z]+)?)(?: pronouns)?"),
    rule("time_zone", r"[Mm]y time ?zone is (?P<object>[A-Z][\w+:/-]*(?: [A-Z]\w+)?)"),
    rule("time_zone", rf"{AM} in the (?P<object>[A-Z]\w+) time ?zone"),
    rule("native_language", rf"[Mm]y (?:native language|mother tongue|first language) is (?P<object>{LANGUAGE})"),
    rule("diet", rf"{AM}{NOW} (?:an? )?{DIET}"),
    rule("diet", rf"{SELF}{NOW} (?:eat|went|go|keep) {DIET}"),
    rule("diet", rf"{AM} no longer (?:an? )?{DIET}", ends=True),
    rule("diet", rf"{SELF} used to be (?:an? )?{DIET}", ends=True),
    rule("does_not_eat", rf"{SELF} (?:don['\u2019]t|do not|can['\u2019]t|cannot|never) eat (?P<object>{_FOOD})"),
    rule("intolerant_to", rf"{AM}{NOW} (?P<object>lactose|gluten|fructose|histamine)[- ]intolerant"),
    rule("allergic_to", rf"{AM}{NOW} (?:severely |very )?allergic to {LIST}", many=True),
    rule("allergic_to", rf"{HAVE} an? (?:(?:severe|bad|mild|serious) )?(?P<object>{THING}) allergy"),
    rule("speaks", rf"{SELF}{NOW} speak {LANGUAGES}", many=True),
    rule("learning", rf"(?:{AM}{NOW} learning|{SELF}{NOW} learn) (?P<object>{LANGUAGE})"),
    rule("likes", rf"{SELF}{NOW} (?:like|love|enjoy|adore) (?!to\b){LIST}", many=True),
    rule("likes", rf"{SELF} (?:no longer|used to) (?:like|love|enjoy) (?!to\b){LIST}", ends=True, many=True),
    rule(
        "dislikes",
        rf"{SELF}{NOW} (?:dislike|hate|can['\u2019]t stand|(?:don['\u2019]t|do not) like) (?!to\b){LIST}",
        many=True,
    ),
    rule("prefers", rf"{SELF}{NOW} prefer (?!to\b)(?P<object>{THING}(?: (?:over|to) {THING})?)"),
    rule("prefers", rf"(?:I|i)(?:['\u2019]d| would) rather have (?P<object>{THING} than {THING})"),
    rule("favourite_", rf"[Mm]y favou?rite (?P<kind>\w+(?: \w+)?) is (?:now )?(?P<object>{THING})"),
    rule("relation", rf"[Mm]y {RELATION}(?:['\u2019]s name is| is (?:called|named)) (?P<object>{NAME})"),
    rule("relation", rf"{SELF}{NOW} have an? {RELATION} (?:called|named) (?P<object>{NAME})"),
    rule("married_to", rf"{AM}{NOW} married to (?P<object>{NAME})"),
    rule(
        "has_pet", rf"(?:{HAVE}|{WE}{NOW} (?:have|adopted|got)) an? (?P<kind>{PET}) (?:called|named) (?P<object>{NAME})"
    ),
    rule("has_pet", rf"[Mm]y (?P<kind>{PET})(?:['\u2019]s name is| is (?:called|named)) (?P<object>{NAME})"),
    rule("has_pet", rf"(?:{HAVE}|{SELF}{NOW} (?:have|adopted|got)) an? (?P<object>{PET})"),
    rule(
        "has_pet",
        rf"{HAVE} (?:two|three|\d) {PET}s(?:,| called| named) (?P<object>{PERSON}(?:(?:, | and |, and ){PERSON})+)",
        many=True,
    ),
    rule("owns", rf"{SELF}{NOW} (?:own|bought) an? {_MODEL}"),
    rule("drives", rf"{SELF}{NOW} drive an? {_MODEL}"),
    rule("uses", rf"(?:{SELF}{NOW} use|{AM}{NOW} using|(?:{SELF}|{HAVE}){NOW} switched to) (?P<object>{NAME})"),
    rule(
        "plans",
        rf"{AM} (?P<object>(?:flying to|going to|travell?ing to|visiting|moving to|getting married|meeting|"
        rf"starting at)(?: {NAME})? (?P<soon>{SOON}))",
        tail="$",
    ),
)
AT_WORK: Final = rule("works_at", rf"{AM}{NOW} (?:at|with) (?P<object>{NAME})")
"""`I'm at Acme`: an employer only after the speaker said which job they left; otherwise just a place."""

KINSHIP: Final = re.compile(
    rf"^[Mm]y (?:(?:older|younger|big|little|twin) )?{RELATION},? (?P<object>{PERSON}),? (?P<rest>[a-z].*)$"
)
COMPANY: Final = re.compile(
    rf"^(?P<rest>[^,;]{{1,200}}?),? with my {RELATION},? (?P<object>{PERSON})"
    r"(?:,? and (?:our|my|two|three)\b[\w ]{1,60})?$"
)
"""A companion at the end of a clause: `with my sister Anna`."""

_ADJECTIVES: Final = (
    rf"(?:(?:not|no longer|still|also|severely) )?(?:allergic to |(?:vegan|vegetarian|pescatarian)\b|\w+[- ]intolerant|"
    rf"married to |based in |living in |working (?:at|for|as) |an? {JOB}\b|\d{{1,3}} years old|from [A-Z])"
)
_VERBS: Final = (
    r"(?:(?:also|now|still|really) )?(?:live in |work (?:at|for|as) |speak [A-Z]|prefer |drive an? |own an? |"
    rf"have an? (?:{PET}|{RELATION.replace('?P<relation>', '?:')})\b|moved to |was born in |use [A-Z]|"
    r"don['\u2019]t |no longer )"
)
_GOES_ON: Final = re.compile(
    rf"(?:,? and|,? but)(?: also)? (?:(?={_ADJECTIVES})|(?=(?P<does>{_VERBS})))"
    rf"|, (?=working (?:at|for|as) |living in |based in |an? {JOB}\b)"
)
"""Where a second statement about the same person begins, whose `I` or `I'm` is omitted."""
_OWN: Final = re.compile(rf"^{WE}(?:['\u2019]\w+)? ")


def unfolded(clause: str) -> list[str]:
    """A clause about the speaker, split into one clause per statement."""
    if not _OWN.match(clause):
        return [clause]
    parts: list[str] = []
    head, start = "", 0
    for found in _GOES_ON.finditer(clause):
        parts.append(head + clause[start : found.start()])
        head, start = ("I " if found["does"] else "I'm "), found.end()
    return [*parts, head + clause[start:]]
