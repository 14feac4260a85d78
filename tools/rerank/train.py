"""Train the cross-encoder: first it imitates the sentence encoder it starts from, then it learns which turns answer.

`python tools/rerank/train.py IN OUT TOKENIZER [--steps N] [--first N] [--runs full,a,b]` with the files of
`candidates.py` in IN. Writes the scores of each run to OUT, and of the run `full` the weights and the model as ONNX in
8 bits. Needs torch, tokenizers, onnx, onnxruntime and numpy. Minutes on one GPU; a CPU is enough for a trial.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer
from torch import Tensor, nn

SEED = 0
WIDTH, INNER, HEADS, LAYERS, PIECES, PLACES = 384, 1536, 12, 6, 30_522, 512
BEGIN, END, SIGNS = 101, 102, (1012, 999, 1029, 1025)
PARTS = 8
"""Sentences of a text, at most."""
ASKED, SHOWN = 64, 144
"""Word pieces of a question and of a candidate that are read."""
LISTS, SIZE = 32, 24
"""Questions of a step, and candidates of each."""
SHARES = {"project": 0.22, "life": 0.2, "people": 0.2, "longmemeval": 0.12, "made": 0.18, "letta": 0.08}
"""How much of the training each set has."""
SHARPNESS = 15.0
KEPT = 0.3
"""Weight of the imitation in the second stage: it keeps what the templates do not teach."""
BESIDE = 0.0
"""Weight of the ranking in the loss. With 1.5 the model learns what the ranking does not know: tried, no gain."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Layer(nn.Module):
    """One layer of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.mixed = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm_mixed, self.norm_out = nn.LayerNorm(WIDTH, 1e-12), nn.LayerNorm(WIDTH, 1e-12)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """The texts after this layer; `hidden` is added where there is padding."""
        query, key, value = (
            part(x).view(x.shape[0], -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if torch.onnx.is_in_onnx_export():
            weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + hidden, -1)
            seen = weights @ value
        else:
            rate = 0.1 if self.training else 0.0
            seen = F.scaled_dot_product_attention(query, key, value, hidden.to(query.dtype), dropout_p=rate)
        seen = seen.transpose(1, 2).reshape(x.shape[0], -1, WIDTH)
        x = self.norm_mixed(x + self.drop(self.mixed(seen)))
        return self.norm_out(x + self.drop(self.down(F.gelu(self.up(x)))))


class Encoder(nn.Module):
    """BERT with the weights of the sentence encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, WIDTH) for n in (PIECES, PLACES, 2))
        self.norm, self.drop = nn.LayerNorm(WIDTH, 1e-12), nn.Dropout(0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> Tensor:
        """The mean of the last layer."""
        places = self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.drop(self.norm(self.words(ids) + places[None] + self.kinds(kinds)))
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10_000.0
        for layer in self.layers:
            x = layer(x, hidden)
        weight = mask[..., None].to(x.dtype)
        return (x * weight).sum(1) / weight.sum(1)


class CrossEncoder(nn.Module):
    """How well a candidate answers a question, both read together."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder, self.drop = encoder, nn.Dropout(0.1)
        self.dense, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """A score for each pair."""
        mean = self.encoder(input_ids, token_type_ids, attention_mask)
        return self.score(self.drop(torch.tanh(self.dense(mean))))[:, 0]


_NAMES = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "mixed": "attention.output.dense", "norm_mixed": "attention.output.LayerNorm", "up": "intermediate.dense",
    "down": "output.dense", "norm_out": "output.LayerNorm",
}  # fmt: skip


def read_encoder(path: Path) -> Encoder:
    """The sentence encoder."""
    with np.load(path) as file:
        held = {name: torch.from_numpy(file[name].astype(np.float32)) for name in file.files}
    words = "embeddings.word_embeddings.weight"
    weights = {
        "words.weight": held[f"{words}|rows"] * held[f"{words}|scale"],
        "places.weight": held["embeddings.position_embeddings.weight"],
        "kinds.weight": held["embeddings.token_type_embeddings.weight"],
        "norm.weight": held["embeddings.LayerNorm.weight"],
        "norm.bias": held["embeddings.LayerNorm.bias"],
    }
    for place in range(LAYERS):
        for ours, theirs in _NAMES.items():
            for kind in ("weight", "bias"):
                weights[f"layers.{place}.{ours}.{kind}"] = held[f"encoder.layer.{place}.{theirs}.{kind}"]
    encoder = Encoder()
    encoder.load_state_dict(weights)
    return encoder


class Data:
    """Questions with their candidates, cut into word pieces."""

    def __init__(self, path: Path, tokenizer: Tokenizer, *, few: bool) -> None:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            held = json.load(file)
        self.questions: list[dict[str, Any]] = held["questions"][:: 50 if few else 1]
        self.real: list[int] = held.get("real", [])
        queries = held.get("queries", [])
        self.queries = [e.ids[:ASKED] for e in tokenizer.encode_batch(queries, add_special_tokens=False)]
        self.texts = [e.ids[:SHOWN] for e in tokenizer.encode_batch(held["texts"], add_special_tokens=False)]
        asked = [question["question"] for question in self.questions]
        self.asked = [e.ids[:ASKED] for e in tokenizer.encode_batch(asked, add_special_tokens=False)]


def padded(pairs: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of texts as rows of word pieces, with which of both they belong to and where they end."""
    longest = (max(len(a) + len(b) for a, b in pairs) + 3 + 15) // 16 * 16
    ids, kinds, mask = (np.zeros((len(pairs), longest), np.int64) for _ in range(3))
    for row, (first, second) in enumerate(pairs):
        both = [BEGIN, *first, END, *second, END] if second else [BEGIN, *first, END]
        ids[row, : len(both)] = both
        kinds[row, len(first) + 2 : len(both)] = 1
        mask[row, : len(both)] = 1
    return tuple(torch.from_numpy(part).to(DEVICE, non_blocking=True) for part in (ids, kinds, mask))  # type: ignore[return-value]


def mixed_precision() -> torch.autocast:
    """16 bits on a GPU."""
    return torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda")


@torch.no_grad()
def embedded(encoder: Encoder, texts: list[list[int]]) -> Tensor:
    """The sentence encoder's vectors."""
    found, order = torch.zeros(len(texts), WIDTH, device=DEVICE), sorted(range(len(texts)), key=lambda n: len(texts[n]))
    encoder.eval()
    for start in range(0, len(order), 2048):
        part = order[start : start + 2048]
        with mixed_precision():
            found[part] = F.normalize(encoder(*padded([(texts[n], []) for n in part])).float(), dim=-1)
    return found


def optimizer_of(model: nn.Module, rate: float, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """AdamW with a rate that rises and then falls to nothing."""
    large = [p for p in model.parameters() if p.ndim > 1]
    small = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": large, "weight_decay": 0.01}, {"params": small, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate)
    rise = max(1, int(0.06 * steps))
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, max(0.0, (steps - step) / max(1, steps - rise)))
    )


class Imitation:
    """Lists of candidates with the sentence encoder's similarities, without labels.

    A text is as near as its nearest sentence, and a little as near as the whole: what answers a question is often one
    sentence of a message about something else.
    """

    def __init__(self, encoder: Encoder, data: Data) -> None:
        self.data, self.draw = data, random.Random(SEED)
        self.texts, self.asked = embedded(encoder, data.texts), embedded(encoder, data.asked)
        self.real = torch.tensor(data.real, device=DEVICE)
        self.queries = embedded(encoder, data.queries)
        parts, places = list[list[int]](), np.zeros((len(data.texts), PARTS), np.int64)
        for n, text in enumerate(data.texts):
            cut = sentences_of(text)
            places[n] = [len(parts) + min(k, len(cut) - 1) for k in range(PARTS)]
            parts += cut
        self.parts, self.places = embedded(encoder, parts), torch.from_numpy(places).to(DEVICE)

    def lists(self, count: int) -> tuple[list[tuple[list[int], list[int]]], Tensor]:
        """Pairs, and how alike they are: a question of ours, or one that somebody asked, with near and random texts."""
        data, draw, pairs, alike = self.data, self.draw, list[tuple[list[int], list[int]]](), list[Tensor]()
        for _ in range(count):
            if draw.random() < 0.4:
                n = draw.randrange(len(data.questions))
                asked, vector, near = data.asked[n], self.asked[n], data.questions[n]["behind"]
            else:
                n = draw.randrange(len(data.queries))
                asked, vector = data.queries[n], self.queries[n]
                near = self.real[(self.texts[self.real] @ vector).topk(40).indices].tolist()
            near = draw.sample(near, min(len(near), SIZE * 2 // 3))
            near += [draw.choice(data.real) for _ in range(SIZE - len(near))]
            pairs += [(asked, data.texts[text]) for text in near]
            nearest = (self.parts[self.places[near]] @ vector).amax(-1)
            alike.append(0.3 * (self.texts[near] @ vector) + 0.7 * nearest)
        return pairs, torch.stack(alike)

    def similarities(self) -> list[list[float]]:
        """What is imitated, for the candidates of each question: a comparison."""
        found: list[list[float]] = []
        for n, question in enumerate(self.data.questions):
            nearest = (self.parts[self.places[question["behind"]]] @ self.asked[n]).amax(-1)
            found.append((0.3 * (self.texts[question["behind"]] @ self.asked[n]) + 0.7 * nearest).tolist())
        return found


def sentences_of(text: list[int]) -> list[list[int]]:
    """The sentences of a text, given as word pieces; short ones belong to the next, and there are only so many."""
    found: list[list[int]] = [[]]
    for piece in text:
        found[-1].append(piece)
        if piece in SIGNS and len(found[-1]) > 5 and len(found) < PARTS:
            found.append([])
    return [part for part in found if part] or [text or [100]]


def imitation_loss(scores: Tensor, alike: Tensor) -> Tensor:
    """How far the scores of each list are from the similarities."""
    wanted = F.softmax(alike * SHARPNESS, -1)
    near = F.kl_div(F.log_softmax(scores, -1), wanted, reduction="batchmean")
    return near + 0.05 * F.mse_loss(scores, (alike - 0.4) * SHARPNESS)


class Labelled:
    """Lists of candidates of which some are evidence."""

    def __init__(self, data: Data, fold: str, shares: dict[str, float]) -> None:
        self.data, self.shares, self.draw = data, shares, random.Random(SEED + 1)
        groups: dict[str, list[int]] = {name: [] for name in shares}
        for n, question in enumerate(data.questions):
            # Each fold leaves out the half that it is measured on; a number differs between files, the text does not.
            is_half = len(question["question"]) % 2 == "ba".find(fold)
            is_left_out = question["set"] == "longmemeval" and is_half
            if question["set"] in groups and {0, 1} <= {*question["right"]} and not is_left_out:
                groups[question["set"]].append(n)
        self.groups = {name: group for name, group in groups.items() if group}

    def lists(self, count: int) -> tuple[list[tuple[list[int], list[int]]], Tensor, Tensor]:
        """Pairs, which of them are evidence, and what the ranking of recall gave each of them."""
        draw, pairs, wanted, base = (
            self.draw,
            list[tuple[list[int], list[int]]](),
            list[list[float]](),
            list[list[float]](),
        )
        names, shares = list(self.groups), [self.shares[name] for name in self.groups]
        for name in draw.choices(names, shares, k=count):
            n = draw.choice(self.groups[name])
            texts, right, ranked = self._list(self.data.questions[n])
            pairs += [(self.data.asked[n], self.data.texts[text]) for text in texts]
            wanted.append(right)
            base.append(ranked)
        return pairs, torch.tensor(wanted, device=DEVICE), torch.tensor(base, device=DEVICE)

    def _list(self, question: dict[str, Any]) -> tuple[list[int], list[float], list[float]]:
        draw = self.draw
        texts = question["behind" if draw.random() < 0.75 else "alone"]
        good = [place for place, y in enumerate(question["right"]) if y == 1]
        bad = [place for place, y in enumerate(question["right"]) if y == 0]
        kept = draw.sample(good, min(3, len(good)))
        hard = draw.sample(bad[:25], min(14, len(bad[:25])))
        rest = [place for place in bad if place not in set(hard)]
        hard += draw.sample(rest, min(len(rest), SIZE - len(kept) - len(hard)))
        base = np.array(question["base"])
        scaled = (base - base.mean()) / (base.std() + 1e-6)
        lowest = float(scaled.min())
        places = [*kept, *hard]
        chosen = [texts[place] for place in places]
        ranked = [float(scaled[place]) if place < len(base) else lowest for place in places]
        while len(chosen) < SIZE:
            chosen.append(draw.randrange(len(self.data.texts)))
            ranked.append(lowest)
        return chosen, [1.0] * len(kept) + [0.0] * (SIZE - len(kept)), ranked


def labelled_loss(scores: Tensor, base: Tensor, wanted: Tensor) -> Tensor:
    """Each piece of evidence against what is none, beside the ranking, and a little of every candidate by itself."""
    alone = F.binary_cross_entropy_with_logits(
        scores,
        wanted,
        weight=torch.where(wanted > 0, 1 / wanted.sum(-1, keepdim=True), 1 / (1 - wanted).sum(-1, keepdim=True)),
        reduction="sum",
    )
    scores = scores + base
    others = torch.logsumexp(scores.masked_fill(wanted > 0, -1e4), -1, keepdim=True)
    listwise = ((F.softplus(others - scores) * wanted).sum(-1) / wanted.sum(-1)).mean()
    return listwise + 0.15 * alone / len(scores)


def train(
    model: CrossEncoder,
    imitation: Imitation,
    labelled: Labelled | None,
    *,
    steps: int,
    rate: float,
    kept: float = KEPT,
    beside: float = BESIDE,
) -> None:
    """So many steps; without labels, of imitation alone."""
    optimizer, schedule = optimizer_of(model, rate, steps)
    model.train()
    began = time.monotonic()
    for step in range(steps):
        count = LISTS if labelled is None else LISTS // 4
        pairs, alike = imitation.lists(count)
        more, wanted, base = ([], None, None) if labelled is None else labelled.lists(LISTS)
        with mixed_precision():
            scores = model(*padded(pairs + more)).float().view(-1, SIZE)
        loss = imitation_loss(scores[:count], alike)
        if wanted is not None and base is not None:
            loss = labelled_loss(scores[count:], base * beside, wanted) + kept * loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}, {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201


@torch.no_grad()
def scores_of(model: CrossEncoder, data: Data, form: str) -> list[list[float]]:
    """The score of each candidate of each question, with (`behind`) or without (`alone`) the turn before it."""
    model.eval()
    pairs = [(data.asked[n], data.texts[t]) for n, q in enumerate(data.questions) for t in q[form]]
    order, found = sorted(range(len(pairs)), key=lambda n: len(pairs[n][0]) + len(pairs[n][1])), np.zeros(len(pairs))
    for start in range(0, len(order), 4096):
        part = order[start : start + 4096]
        with mixed_precision():
            found[part] = model(*padded([pairs[n] for n in part])).float().cpu().numpy()
    rest = iter(found.round(4).tolist())
    return [[next(rest) for _ in question[form]] for question in data.questions]


def export(model: CrossEncoder, path: Path) -> None:
    """The model as ONNX with weights in 8 bits."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = model.float().cpu().eval()
    pairs = padded([([2003, 2023], [2009, 2003, 2025]), ([2003], [2009])])
    inputs = tuple(part.cpu() for part in pairs)
    names, axes = ["input_ids", "token_type_ids", "attention_mask"], {0: "pairs", 1: "pieces"}
    torch.onnx.export(
        model, inputs, str(path), input_names=names, output_names=["scores"], opset_version=17, dynamo=False,
        dynamic_axes={**dict.fromkeys(names, axes), "scores": {0: "pairs"}},
    )  # fmt: skip
    small = path.with_suffix(".int8.onnx")
    quantize_dynamic(path, small, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)
    import onnxruntime

    held = dict(zip(names, (part.numpy() for part in inputs), strict=True))
    with torch.no_grad():
        print("torch", model(*inputs).tolist())  # noqa: T201
    for file in (path, small):
        print(file.name, file.stat().st_size, onnxruntime.InferenceSession(file).run(None, held)[0].tolist())  # noqa: T201


def main() -> None:
    """Both stages, then the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("folder", "out", "tokenizer"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", default="full,a,b")
    parser.add_argument("--name", default="model")
    parser.add_argument("--kept", type=float, default=KEPT)
    parser.add_argument("--beside", type=float, default=BESIDE)
    parser.add_argument("--share", type=float, help="of LongMemEval")
    parser.add_argument("--without", default="", help="sets to leave out, for a comparison")
    parser.add_argument("--compare", action="store_true", help="write what is imitated as scores, too")
    parser.add_argument("--few", action="store_true", help="every fiftieth question, for a trial")
    given = parser.parse_args()
    shares = {name: share for name, share in SHARES.items() if name not in given.without.split(",")}
    if given.share is not None:
        shares["longmemeval"] = given.share
    tokenizer = Tokenizer.from_file(str(given.tokenizer))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    data, measured = (
        Data(given.folder / name, tokenizer, few=given.few) for name in ("lists.json.gz", "measured.json.gz")
    )
    print(f"{len(data.questions)} questions, {len(data.texts)} texts on {DEVICE}", flush=True)  # noqa: T201
    torch.manual_seed(SEED)
    imitation = Imitation(read_encoder(given.folder / "teacher.npz").to(DEVICE), data)
    model = CrossEncoder(read_encoder(given.folder / "teacher.npz")).to(DEVICE)
    given.out.mkdir(exist_ok=True)
    if given.compare:
        near = Imitation(read_encoder(given.folder / "teacher.npz").to(DEVICE), measured).similarities()
        with gzip.open(given.out / "scores_similar_full.json.gz", "wt") as file:
            json.dump({"alone": near, "behind": near}, file)
    first = given.out / "first.pt"
    if not first.exists():  # several runs begin with the same one
        train(model, imitation, None, steps=given.first, rate=1e-4)
        torch.save(model.state_dict(), first)
    start = torch.load(first, map_location=DEVICE)
    for run in given.runs.split(","):
        model.load_state_dict(start)
        torch.manual_seed(SEED)
        train(
            model,
            imitation,
            Labelled(data, run, shares),
            steps=given.steps,
            rate=5e-5,
            kept=given.kept,
            beside=given.beside,
        )
        held = {form: scores_of(model, measured, form) for form in ("alone", "behind")}
        with gzip.open(given.out / f"scores_{given.name}_{run}.json.gz", "wt") as file:
            json.dump(held, file)
        if run == "full":
            torch.save(
                {name: value.half() for name, value in model.state_dict().items()}, given.out / f"{given.name}.pt"
            )
            export(model, given.out / f"{given.name}.onnx")
            model.to(DEVICE)


if __name__ == "__main__":
    main()
