"""Gather the texts, cut them as the embedder does, and pack them with the teacher for `train.py`.

`python -m tools.vectors.prepare --sources FOLDER --talk FOLDER --teacher FOLDER --out FOLDER`; README.md says what
lies in these folders. Needs Loom, numpy and pyyaml; no GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from struct import unpack

import numpy as np
import yaml

from loom.providers.embedding.local import static_pieces

SEED = 0
PIECES = 30_522
UNKNOWN = 100
LONGEST = 400
SIZES = (8, 16, 30, 70, 150, 300)
"""Texts are cut at sentences into windows of one of these many words."""
LATIN = {"english", "german", "french", "spanish", "italian", "portuguese", "dutch", "swedish"}


def windows(text: str, size: int) -> list[str]:
    """The text in pieces of about `size` words, cut at the ends of sentences."""
    found, words = [[]], 0
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", text):
        count = sentence.count(" ") + 1
        if found[-1] and words + count > size:
            found.append([])
            words = 0
        found[-1].append(sentence[:600])
        words += count
    return [joined for joined in map(" ".join, found) if len(joined) > 8]


def read_talk(folder: Path) -> Iterator[tuple[str, str]]:
    """LongMemEval (MIT), RealMem and Letta (Apache-2.0): what people and assistants say to each other."""
    for question in json.loads(gzip.decompress((folder / "longmemeval/oracle_dev.json.gz").read_bytes())):
        yield "short", question["question"]
        for turn in (turn for session in question["haystack_sessions"] for turn in session):
            yield "long", turn["content"]
    for path in sorted((folder / "realmem").glob("*.json")):
        for session in json.loads(path.read_text("utf-8"))["dialogues"]:
            yield from (("long", turn["content"]) for turn in session["dialogue_turns"])
    for line in (folder / "letta_evals/core_memory_read.jsonl").read_text("utf-8").splitlines():
        item = json.loads(line)
        yield "short", item["input"]
        yield from (("short", fact) for fact in item["agent_args"]["extra"]["facts"])


def read_wordnet(folder: Path) -> Iterator[str]:
    """WordNet 3.1: the words of a meaning, what they mean, and examples."""
    for path in sorted(folder.glob("wn/package/dict/data.*")):
        for line in path.read_text("utf-8").splitlines():
            head, bar, gloss = line.partition(" | ")
            if bar and not line.startswith("  "):
                fields = head.split()
                words = [fields[4 + 2 * place].replace("_", " ") for place in range(int(fields[3], 16))]
                yield f"{', '.join(words)}: {gloss.strip()}"
                yield from (example for example in re.findall(r'"([^"]{20,})"', gloss))


def read_books(folder: Path) -> Iterator[str]:
    """Speeches of presidents and Moby-Dick, which are in the public domain."""
    for pattern in ("sotu/package/data/[0-9]*.json", "md/package/data/chapter_*.json"):
        for path in sorted(folder.glob(pattern)):
            yield json.loads(path.read_text("utf-8"))["text"]


def read_manuals(folder: Path) -> Iterator[str]:
    """The manuals of Django, scikit-learn, Scrapy and Celery (BSD), and of SQLAlchemy and pytest (MIT)."""
    for pattern in ("django-*/docs/**/*.txt", "SQLAlchemy-*/doc/**/*.rst", "pytest-*/doc/**/*.rst",
                    "celery-*/docs/**/*.rst", "Scrapy-*/docs/**/*.rst", "scikit-learn-*/doc/**/*.rst"):  # fmt: skip
        for path in sorted(folder.glob(pattern)):
            for paragraph in re.split(r"\n\s*\n", path.read_text("utf-8", errors="ignore")):
                plain = re.sub(r":\w+(:\w+)?:|[`*|~]+|^\.\. .*$|<[^>]*>", "", paragraph, flags=re.MULTILINE)
                if plain[:1].isalnum() and plain.count(" ") > 5:
                    yield re.sub(r"\s+", " ", plain)


def read_languages(folder: Path) -> Iterator[str]:
    """Lines in languages with Latin letters: ChatterBot's corpus (BSD) and the manual of Electron (MIT)."""
    for path in sorted(folder.glob("cb/chatterbot_corpus/data/*/*.yml")):
        if path.parent.name in LATIN:
            for talk in yaml.safe_load(path.read_text("utf-8"))["conversations"]:
                yield from (str(line) for line in talk)
    manual = json.loads((folder / "ei/package/dist/docs.json").read_text("utf-8"))
    english = {line for page in manual["en-US"].values() for line in _lines(page)}
    for language in ("de-DE", "fr-FR", "es-ES", "it-IT", "pt-BR", "nl-NL"):
        yield from (line for page in manual[language].values() for line in _lines(page) if line not in english)


def _lines(page: dict) -> Iterator[str]:
    for section in page["sections"]:
        for line in re.sub(r"```.*?```", "", section["body"], flags=re.DOTALL).splitlines():
            plain = re.sub(r"\]\([^)]*\)|[`*\[\]#>]", "", line).strip()
            if plain.count(" ") > 4:
                yield plain


def written_lines() -> Iterator[str]:
    """Lines of our own: what people tell an assistant about themselves, and how they ask for it later."""
    who = ("I", "my sister", "my husband", "my colleague", "my daughter", "our neighbour")
    things = {
        "{} lives in {}": ("Lisbon", "a small flat in Kyoto", "Toronto", "the old town of Graz", "Nairobi"),
        "{} is allergic to {}": ("peanuts", "shellfish", "penicillin", "cats", "pollen", "gluten"),
        "{} works as {}": ("a nurse", "a data engineer", "a carpenter", "a tax adviser", "a pilot", "a teacher"),
        "{} is learning {}": ("to play the cello", "Portuguese", "to swim", "pottery", "Rust", "chess"),
        "{} prefers {}": ("tea to coffee", "aisle seats", "short answers", "tabs over spaces", "the morning train"),
        "{} has an appointment on {}": ("Monday at nine", "the 14th of March", "Friday afternoon", "the last of May"),
        "{} bought {}": ("a used bicycle", "a new laptop", "two concert tickets", "a red sofa", "a house by the lake"),
        "{} is planning {}": ("a trip to Iceland", "a wedding in June", "a move to Berlin", "a surprise party"),
    }
    asked = {
        "{} lives in {}": "where does {} live", "{} is allergic to {}": "what must {} not eat or touch",
        "{} works as {}": "what is the job of {}", "{} is learning {}": "what new skill is {} learning",
        "{} prefers {}": "what does {} like better", "{} has an appointment on {}": "when is the appointment of {}",
        "{} bought {}": "what did {} buy", "{} is planning {}": "what plans does {} have",
    }  # fmt: skip
    for form, ends in things.items():
        yield from (asked[form].format(person) + "?" for person in who)
        yield from (form.format(person, end) + "." for person, end in product(who, ends))


def gather(sources: Path, talk: Path) -> list[str]:
    """All texts, each once."""
    draw = random.Random(SEED)
    found = list(written_lines())
    for kind, text in read_talk(talk):
        # Twice, in windows of different sizes: it is the talk that the vectors are for.
        sizes = draw.sample(SIZES, 2) if kind == "long" else [LONGEST]
        found += [window for size in sizes for window in windows(text, size)]
    found += draw.sample(list(read_wordnet(sources)), 50_000)
    prose = [w for text in read_books(sources) for w in windows(text, draw.choice(SIZES))]
    found += draw.sample(prose, min(20_000, len(prose)))
    manuals = [w for text in read_manuals(sources) for w in windows(text, draw.choice(SIZES))]
    found += draw.sample(manuals, min(30_000, len(manuals)))
    other = list(dict.fromkeys(read_languages(sources)))
    found += draw.sample(other, min(20_000, len(other)))
    return list(dict.fromkeys(found))


def read_teacher(path: Path) -> dict[str, np.ndarray]:
    """The weights of all-MiniLM-L6-v2, in half the precision: they have to travel."""
    raw = path.read_bytes()
    (length,) = unpack("<Q", raw[:8])
    held: dict[str, np.ndarray] = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            first, last = (8 + length + offset for offset in entry["data_offsets"])
            held[name] = np.frombuffer(raw[first:last], np.float32).reshape(entry["shape"]).astype(np.float16)
    return held


def main() -> None:
    """Write `texts.npz` and `teacher.npz`."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("sources", "talk", "teacher", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    cut = [pieces[:LONGEST] for pieces in map(static_pieces, gather(given.sources, given.talk))]
    # Hashed pieces mean nothing to the teacher: it sees an unknown word, and texts of little else are left out.
    cut = [pieces for pieces in cut if sum(piece >= PIECES for piece in pieces) * 10 <= len(pieces)]
    lengths = np.array([len(pieces) for pieces in cut], np.int32)
    flat = np.array([min(piece, PIECES) for pieces in cut for piece in pieces], np.uint16)
    flat[flat == PIECES] = UNKNOWN
    given.out.mkdir(exist_ok=True)
    np.savez_compressed(given.out / "texts.npz", pieces=flat, lengths=lengths)
    np.savez_compressed(given.out / "teacher.npz", **read_teacher(given.teacher / "model.safetensors"))
    print(f"{len(lengths)} texts of {lengths.mean():.1f} pieces")  # noqa: T201


if __name__ == "__main__":
    main()
