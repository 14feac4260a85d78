"""How far off the token counters are, and how fast: against the o200k vocabulary, on 4 KB texts.

    python benchmarks/tokens.py [folder] [--json]

Without a folder it reads what every Python installation has: the standard library's code and documentation,
installed packages' code and descriptions, C headers, translation catalogues of the system (one corpus for each
language), and JSON and logs made up here. With a folder, each text file in it is one more corpus. Only the second
half of each corpus is measured: the estimate's weights were fitted on the first halves of corpora of these kinds
and of English dialogue. Needs the `tokens` extra.
"""

from __future__ import annotations

import gettext
import hashlib
import json
import random
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path

from loom.text.tokens import CalibratedCounter, EstimateCounter, ExactCounter, estimate_tokens

CHUNK = 4096
LIMIT = 800_000
LANGUAGES = (
    *("de", "fr", "es", "pl", "tr", "vi", "ru", "uk", "el", "he", "ar", "fa"),
    *("hi", "bn", "ta", "th", "ka", "ja", "ko", "zh_CN", "zh_TW"),
)
LOCALES = (Path(sys.base_prefix) / "share" / "locale", Path("/usr/share/locale"))
Row = tuple[str, int, float, dict[str, tuple[float, float]]]


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    corpora = dict(own_corpora())
    if words:
        corpora |= folder_corpora(Path(words[0]))
    exact = ExactCounter("o200k")
    rows = [row for name, text in corpora.items() if (row := measure(name, text, exact))]
    if "--json" in sys.argv:
        print(json.dumps([{"corpus": n, "chunks": c, "chars_per_token": r, **e} for n, c, r, e in rows], indent=1))
        return
    print_errors(rows)
    print_calibration(corpora, exact)
    print_speed(corpora)


def measure(name: str, text: str, exact: ExactCounter) -> Row | None:
    """Total and p95 error, in percent, of each way to count the second half of a corpus."""
    chunks = held_out(text)
    if len(chunks) < 4:
        return None
    truth = [exact.count(chunk) for chunk in chunks]
    ways: dict[str, Callable[[str], float]] = {
        "estimate": estimate_tokens,
        "chars/4": lambda chunk: len(chunk) / 4,
        "bytes/4": lambda chunk: len(chunk.encode()) / 4,
    }
    errors = {way: error(list(map(count, chunks)), truth) for way, count in ways.items()}
    return name, len(chunks), sum(map(len, chunks)) / sum(truth), errors


def error(counts: list[float], truth: list[int]) -> tuple[float, float]:
    """Total error and 95th percentile of the absolute error, both in percent."""
    return 100 * (sum(counts) / sum(truth) - 1), 100 * p95([abs(c / t - 1) for c, t in zip(counts, truth, strict=True)])


def p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def print_errors(rows: list[Row]) -> None:
    print(f"{'corpus':22} {'chunks':>6} {'char/tok':>8}   {'estimate':>14}   {'chars/4':>14}   {'bytes/4':>14}")
    print(f"{'':22} {'':6} {'':8}   {'total':>7} {'p95':>6}   {'total':>7} {'p95':>6}   {'total':>7} {'p95':>6}")
    for name, chunks, ratio, errors in rows:
        cells = "   ".join(f"{total:+6.1f}% {high:5.1f}%" for total, high in errors.values())
        print(f"{name:22} {chunks:6} {ratio:8.2f}   {cells}")
    for way in ("estimate", "chars/4", "bytes/4"):
        highs = [errors[way][1] for *_, errors in rows]
        print(f"{way}: p95 error over the corpora: median {statistics.median(highs):.1f}%, worst {max(highs):.1f}%")


def print_calibration(corpora: dict[str, str], exact: ExactCounter) -> None:
    """A model that takes 1.35 times the tokens of o200k, asked with a mix of code, JSON and Chinese."""
    names = [name for name in ("python packages", "json records", "zh_CN", "documentation") if name in corpora]
    mixed = [chunk for group in zip(*(held_out(corpora[name]) for name in names), strict=False) for chunk in group]
    counter = CalibratedCounter(EstimateCounter())
    print("\ncalibration, truth = 1.35 x o200k, mixed requests of 16 KB")
    for seen in range(6):
        rest = mixed[24:]
        misses = [abs(counter.count(chunk) / (1.35 * exact.count(chunk)) - 1) for chunk in rest]
        print(f"  after {seen} responses: p95 error {100 * p95(misses):5.1f}%, declared ±{100 * counter.error:.0f}%")
        request = mixed[4 * seen : 4 * seen + 4]
        counter.observe(sum(map(counter.count, request)), round(1.35 * sum(map(exact.count, request))))


def print_speed(corpora: dict[str, str]) -> None:
    print(f"\n{'MB/s on 4 KB texts':22} {'estimate':>9} {'o200k':>9} {'remembered':>11}")
    for name in ("documentation", "python packages", "json records", "zh_CN"):
        if name not in corpora:
            continue
        chunks = list(split(corpora[name]))
        size = sum(len(chunk.encode()) for chunk in chunks) / 1e6
        fresh, known = ExactCounter("o200k"), EstimateCounter()
        fresh.count("warm up")
        for chunk in chunks:
            known.count(chunk)
        quickest = min(timed(estimate_tokens, chunks) for _ in range(5))
        speeds = [size / quickest, size / timed(fresh.count, chunks), size / timed(known.count, chunks)]
        print(f"{name:22} {speeds[0]:9.0f} {speeds[1]:9.0f} {speeds[2]:11.0f}")


def timed(count: Callable[[str], float], chunks: list[str]) -> float:
    start = time.perf_counter()
    for chunk in chunks:
        count(chunk)
    return time.perf_counter() - start


def split(text: str) -> Iterator[str]:
    data = text.encode("utf-8", "replace")
    for at in range(0, len(data) - CHUNK // 2, CHUNK):
        yield data[at : at + CHUNK].decode("utf-8", "ignore")


def held_out(text: str) -> list[str]:
    chunks = list(split(text))
    return chunks[len(chunks) // 2 :]


def own_corpora() -> Iterator[tuple[str, str]]:
    from pydoc_data.topics import topics

    paths = sysconfig.get_paths()
    yield "documentation", "\n".join(topics.values())[:LIMIT]
    yield "package descriptions", "\n".join(str(d.read_text("METADATA") or "") for d in distributions())[:LIMIT]
    yield "standard library", read_many(sorted(Path(paths["stdlib"]).glob("*.py")))
    yield "python packages", read_many(sorted(Path(paths["purelib"]).rglob("*.py")))
    yield "c headers", read_many(sorted(Path(paths["include"]).rglob("*.h")))
    yield "json records", "\n".join(json.dumps(record(i), indent=2 if i % 2 else None) for i in range(2500))[:LIMIT]
    yield "logs", "\n".join(log_line(i) for i in range(4000))[:LIMIT]
    for language in LANGUAGES:
        if text := catalogue(language):
            yield language, text


def folder_corpora(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            try:
                found[path.name] = path.read_text(encoding="utf-8")[:LIMIT]
            except UnicodeDecodeError:
                print(f"{path} is not UTF-8 text; left out", file=sys.stderr)
    return found


def read_many(paths: list[Path], each: int = 20_000) -> str:
    """Parts of many files, in an order that does not follow the alphabet but is always the same."""
    random.Random(1).shuffle(paths)
    texts, size = list[str](), 0
    for path in paths:
        texts.append(path.read_text(encoding="utf-8", errors="replace")[:each])
        size += len(texts[-1])
        if size > LIMIT:
            break
    return "\n".join(texts)


def catalogue(language: str) -> str:
    """The longer translated messages of a language, from the system's catalogues."""
    texts = list[str]()
    for folder in LOCALES:
        for path in sorted((folder / language / "LC_MESSAGES").glob("*.mo")):
            try:
                with path.open("rb") as file:
                    messages = vars(gettext.GNUTranslations(file))["_catalog"]
            except (OSError, UnicodeDecodeError):
                continue
            texts.extend(text for key, text in messages.items() if key and isinstance(text, str) and len(text) > 24)
    random.Random(2).shuffle(texts)
    return "\n".join(islice(texts, 20_000))[: LIMIT // 2]


def record(i: int) -> dict[str, object]:
    dice = random.Random(i)
    digest = hashlib.sha256(str(i).encode()).hexdigest()
    return {
        "id": f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}",
        "created_at": f"2026-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}T{dice.randint(0, 23):02}:15:07Z",
        "user_id": dice.randint(1, 10**9),
        "amount": round(dice.random() * 1000, 2),
        "status": dice.choice(["active", "failed", "pending_review"]),
        "tags": dice.sample(["alpha", "beta", "prod", "eu-west-1", "us-east-1"], 2),
        "nested": {"latencyMs": dice.randint(1, 5000), "path": f"/api/v2/items/{i}/detail", "ok": dice.random() < 0.5},
    }


def log_line(i: int) -> str:
    dice = random.Random(i)
    level = dice.choice(["INFO", "WARN", "ERROR"])
    return (
        f"2026-11-{dice.randint(1, 28):02}T12:{dice.randint(0, 59):02}:{dice.randint(0, 59):02}.{i % 1000:03}Z {level} "
        f"[worker-{dice.randint(0, 32)}] app.server - request {dice.randint(10**6, 10**8)} GET /v1/users/{i}/orders "
        f"-> {dice.choice([200, 404, 500])} in {dice.random() * 900:.1f}ms"
    )


if __name__ == "__main__":
    main()
