"""Text analysis for lexical search: words cut, folded and stemmed into terms.

Every store uses the same analysis, so that a query finds the same records whatever keeps them.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from typing import Literal

MAX_TERM = 64
"""Longer words are cut, in texts and queries alike."""

STOP_WORDS = frozenset(
    """
    a about above after again against all am an and any are arent as at be because been before being below between
    both but by can cannot cant could couldnt did didnt do does doesnt doing dont down during each few for from further
    had hadnt has hasnt have havent having he her here hers herself hes him himself his how i id if ill im in into is
    isnt it its itself ive just lets me more most my myself no nor not now of off on once only or other our ours
    ourselves out over own same she shes should shouldnt so some such than that thats the their theirs them themselves
    then there theres these they theyre theyve this those through to too under until up us very was wasnt we were
    werent weve what whats when where which while who whom whos why will with wont would wouldnt you youd youll your
    youre yours yourself yourselves youve
    """.split()  # noqa: SIM905
)
"""English words that do not tell a topic, spelled as tokens() gives them."""

_GRAMMAR = frozenset(
    """
    der das dem des ein eine einen einem einer eines ist sind und oder mein meine meinen meinem meiner ich wir wie wo
    wer wann welche welcher welches welchem welchen von zu im auf habe haben hat heisst fur mit
    le la les un une du de est sont et ou je nous quel quelle quels qui que dans avec pour mon mes
    el los las una del es y mi mis yo cual cuales donde cuando quien en por para tengo son
    il gli di della sono mio mia miei io quale dove quando chi che
    os um uma da sao meu minha eu qual onde quem em com
    het een zijn mijn ik wij welke waar wanneer wat
    я мы мой моя мое мои моего моей как где когда кто что какой какая какую в на с у и из о по
    """.split()  # noqa: RUF001, SIM905
)
"""Words of other languages that do not tell a topic."""
_ENGLISH = frozenset("the what where when which who how did does are my you your have has and with about".split())  # noqa: SIM905
"""Words that only English has: beside one of them, `LA` and `Mia` are names."""

# Scripts written without spaces: a run of them is cut into pairs of characters.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# The vowel signs of Indic scripts are not letters to a regular expression, but part of a word.
_LETTERS = rf"(?:[^\W_\u0900-\u0dff{_UNSPACED}]|[\u0900-\u0963\u0966-\u0dff])+"
_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*")
_APOSTROPHES = re.compile("['\u2019]")
# Marks of Indic and other scripts are vowels, not accents; only these blocks hold accents.
_ACCENTS = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u20d0-\u20ff]+")
_POSSESSIVE = re.compile("['\u2019]s$")
_MOST_MARKS = 30
_MARKS = re.compile(rf"[^\w\s\x00-\x7f]{{{_MOST_MARKS + 1},}}")  # and other signs, which _parted() tells apart


def tokens(text: str) -> list[str]:
    """The words of a text in order: case and accents folded, `Anna's` as `anna`, `don't` as `dont`."""
    if text.isascii():
        words = _ASCII_WORD.findall(text.lower())
        if "'" in text:
            words = [_joined(word) if "'" in word else word for word in words]
        return [word[:MAX_TERM] for word in words] if max(map(len, words), default=0) > MAX_TERM else words
    found: list[str] = []
    any_word, unspaced = _of_all_scripts()
    for word in any_word.findall(folded(text)):
        if unspaced.match(word):
            found.extend([word] if len(word) == 1 else [word[i : i + 2] for i in range(len(word) - 1)])
        else:
            found.append((word if word.isalnum() else _joined(word))[:MAX_TERM])
    return found


@cache
def _of_all_scripts() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A word of any script, and the beginning of one without spaces; compiled at the first text that is not ASCII."""
    return re.compile(rf"[{_UNSPACED}]+|{_LETTERS}(?:['\u2019]{_LETTERS})*"), re.compile(rf"[{_UNSPACED}]")


def terms(text: str) -> list[str]:
    """The stems of all words of a text, stop words included, in order: what an index holds."""
    return [stem(token) for token in tokens(text)]


def query_terms(text: str) -> tuple[str, ...]:
    """The different stems to look for, in order; stop words only where there is nothing else."""
    words = tokens(text)
    kept = [word for word in words if word not in STOP_WORDS] or words
    return tuple(dict.fromkeys(stem(word) for word in kept))


def content_terms(text: str) -> tuple[str, ...]:
    """The stems of query_terms() without the grammar of other languages: what a question is about.

    An index is searched for all of them, where rare words count more; this is for counting how many a text has.
    """
    words = tokens(text)
    kept = [word for word in words if word not in STOP_WORDS]
    if _ENGLISH.isdisjoint(words):
        kept = [word for word in kept if word not in _GRAMMAR] or kept
    return tuple(dict.fromkeys(stem(word) for word in kept or words))


def folded(text: str) -> str:
    """The text with case and accents folded, as the words of an index are."""
    if text.isascii():
        return text.lower()
    # Hangul is left composed: taken apart, one syllable would become three letters.
    spread = normalised("NFKD", text.casefold())
    return normalised("NFC", _ACCENTS.sub("", spread))


def normalised(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> str:
    """The text in a normal form of Unicode, in time that grows with its length.

    Marks on one letter are put in order by comparing each with all before it, so thousands of them take minutes. More
    than thirty are parted by a joiner, as the Stream-Safe Text Format of Unicode (UAX 15) does; no language has them.
    """
    return unicodedata.normalize(form, _MARKS.sub(_parted, text))


def _parted(signs: re.Match[str]) -> str:
    parts: list[str] = []
    marks = 0
    for sign in signs[0]:
        marks = marks + 1 if unicodedata.combining(sign) else 0
        if marks > _MOST_MARKS:
            parts.append("\u034f")
            marks = 1
        parts.append(sign)
    return "".join(parts)


def _joined(word: str) -> str:
    # `it's` and `Anna's` lose the ending; what is left of a contraction closes up.
    return _APOSTROPHES.sub("", _POSSESSIVE.sub("", word))


# Stored indexes hold these stems: a stemmer with other results would not find what is stored.
@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """The stem of a folded English word by Porter's rules of 1980; any other word comes back as it is."""
    if len(word) <= 2 or not (word.isascii() and word.isalpha()):
        return word
    word = _plural(word)
    word = _past(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _STEP_2)
    word = _replaced(word, _STEP_3)
    return _tidied(_without_suffix(word))


_STEP_2 = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("abli", "able"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"),
)  # fmt: skip
_STEP_3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
_STEP_4 = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize", "ion",
    "al", "er", "ic", "ou",
)  # fmt: skip


def _shape(word: str) -> str:
    """The word as `v` and `c`: a `y` is a vowel behind a consonant."""
    shape = ""
    for char in word:
        is_vowel = char in "aeiou" or (char == "y" and shape.endswith("c"))
        shape += "v" if is_vowel else "c"
    return shape


def _measure(word: str) -> int:
    """How many times a vowel is followed by a consonant."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _ends_short(word: str) -> bool:
    """Whether it ends consonant, vowel, consonant, as in `hop`; not with w, x or y."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word).endswith("c")


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        if word.endswith(ending):
            base = word[: -len(ending)]
            return _respelled(base) if _has_vowel(base) else word
    return word


def _respelled(word: str) -> str:
    """The verb that `ed` or `ing` was cut from, spelled as a verb again."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _ends_double(word) and word[-1] not in "lsz":
        return word[:-1]
    if _measure(word) == 1 and _ends_short(word):
        return word + "e"
    return word


def _replaced(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    for ending, other in rules:
        if word.endswith(ending):
            base = word[: -len(ending)]
            return base + other if _measure(base) > 0 else word
    return word


def _without_suffix(word: str) -> str:
    for ending in _STEP_4:
        if word.endswith(ending):
            base = word[: -len(ending)]
            if _measure(base) > 1 and (ending != "ion" or base.endswith(("s", "t"))):
                return base
            return word
    return word


def _tidied(word: str) -> str:
    if word.endswith("e"):
        base = word[:-1]
        measure = _measure(base)
        if measure > 1 or (measure == 1 and not _ends_short(base)):
            word = base
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word
