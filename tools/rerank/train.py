"""Train the cross-encoder: first it imitates the sentence encoder it starts from, then it learns which turns answer.

`python tools/rerank/train.py IN OUT TOKENIZER [--steps N] [--first N] [--runs full,a,b]` with the files of
`candidates.py` in IN. Writes the scores of each run to OUT, and of the run `full` the weights and the model as ONNX in
8 bits. Needs torch, tokenizers, onnx, onnxruntime and numpy. Minutes on one GPU; on a CPU, good for a trial of two steps.
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
BEGIN, END = 101, 102
ASKED, SHOWN = 64, 144
"""Word pieces of a question and of a candidate that are read."""
LISTS, SIZE = 32, 24
"""Questions of a step, and candidates of each."""
SHARES = {"project": 0.22, "life": 0.2, "people": 0.2, "longmemeval": 0.12, "made": 0.18, "letta": 0.08}
"""How much of the training each set has."""
SHARPNESS = 15.0
KEPT = 0.3
"""Weight of the imitation in the second stage: it keeps what the templates do not teach."""
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
        self.asks = [n for n, text in enumerate(held["texts"]) if "?" in text]
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
    """Lists of candidates with the sentence encoder's similarities: no labels."""

    def __init__(self, encoder: Encoder, data: Data) -> None:
        self.data, self.draw = data, random.Random(SEED)
        self.texts, self.asked = embedded(encoder, data.texts), embedded(encoder, data.asked)

    def lists(self, count: int) -> tuple[list[tuple[list[int], list[int]]], Tensor]:
        """Pairs, and how alike they are; a question or a turn that asks something, with near and random texts."""
        data, draw, pairs, alike = self.data, self.draw, list[tuple[list[int], list[int]]](), list[Tensor]()
        for _ in range(count):
            if draw.random() < 0.6:
                n = draw.randrange(len(data.questions))
                asked, vector, near = data.asked[n], self.asked[n], data.questions[n]["alone"]
            else:
                n = draw.choice(data.asks)
                asked, vector = data.texts[n][-48:], self.texts[n]
                near = (self.texts @ vector).topk(40).indices.tolist()[1:]
            near = draw.sample(near, min(len(near), SIZE * 2 // 3))
            near += [draw.randrange(len(data.texts)) for _ in range(SIZE - len(near))]
            pairs += [(asked, data.texts[text]) for text in near]
            alike.append(self.texts[near] @ vector)
        return pairs, torch.stack(alike)


def imitation_loss(scores: Tensor, alike: Tensor) -> Tensor:
    """How far the scores of each list are from the similarities."""
    wanted = F.softmax(alike * SHARPNESS, -1)
    near = F.kl_div(F.log_softmax(scores, -1), wanted, reduction="batchmean")
    return near + 0.05 * F.mse_loss(scores, (alike - 0.4) * SHARPNESS)


class Labelled:
    """Lists of candidates of which some are evidence."""

    def __init__(self, data: Data, fold: str) -> None:
        self.data, self.draw = data, random.Random(SEED + 1)
        groups: dict[str, list[int]] = {name: [] for name in SHARES}
        for n, question in enumerate(data.questions):
            left_out = (
                question["set"] == "longmemeval" and fold in "ab" and (question["number"] % 2 == 0) == (fold == "a")
            )
            if 1 in question["right"] and 0 in question["right"] and not left_out:
                groups[question["set"]].append(n)
        self.groups = {name: group for name, group in groups.items() if group}

    def lists(self, count: int) -> tuple[list[tuple[list[int], list[int]]], Tensor]:
        """Pairs, and which of them are evidence."""
        draw, pairs, wanted = self.draw, list[tuple[list[int], list[int]]](), list[list[float]]()
        names, shares = list(self.groups), [SHARES[name] for name in self.groups]
        for name in draw.choices(names, shares, k=count):
            n = draw.choice(self.groups[name])
            texts, right = self._list(self.data.questions[n])
            pairs += [(self.data.asked[n], self.data.texts[text]) for text in texts]
            wanted.append(right)
        return pairs, torch.tensor(wanted, device=DEVICE)

    def _list(self, question: dict[str, Any]) -> tuple[list[int], list[float]]:
        draw = self.draw
        texts = question["behind" if draw.random() < 0.5 else "alone"]
        good = [place for place, y in enumerate(question["right"]) if y == 1]
        bad = [place for place, y in enumerate(question["right"]) if y == 0]
        kept = draw.sample(good, min(3, len(good)))
        hard = draw.sample(bad[:25], min(14, len(bad[:25])))
        rest = [place for place in bad if place not in set(hard)]
        hard += draw.sample(rest, min(len(rest), SIZE - len(kept) - len(hard)))
        chosen = [texts[place] for place in (*kept, *hard)]
        while len(chosen) < SIZE:
            chosen.append(draw.randrange(len(self.data.texts)))
        return chosen, [1.0] * len(kept) + [0.0] * (SIZE - len(kept))


def labelled_loss(scores: Tensor, wanted: Tensor) -> Tensor:
    """Each piece of evidence against what is none, and a little of every candidate by itself."""
    others = torch.logsumexp(scores.masked_fill(wanted > 0, -1e4), -1, keepdim=True)
    listwise = ((F.softplus(others - scores) * wanted).sum(-1) / wanted.sum(-1)).mean()
    balance = torch.where(wanted > 0, 1 / wanted.sum(-1, keepdim=True), 1 / (1 - wanted).sum(-1, keepdim=True))
    alone = F.binary_cross_entropy_with_logits(scores, wanted, weight=balance, reduction="sum") / len(scores)
    return listwise + 0.15 * alone


def train(model: CrossEncoder, imitation: Imitation, labelled: Labelled | None, steps: int, rate: float) -> None:
    """So many steps; without labels, of imitation alone."""
    optimizer, schedule = optimizer_of(model, rate, steps)
    model.train()
    began = time.monotonic()
    for step in range(steps):
        count = LISTS if labelled is None else LISTS // 4
        pairs, alike = imitation.lists(count)
        more, wanted = ([], None) if labelled is None else labelled.lists(LISTS)
        with mixed_precision():
            scores = model(*padded(pairs + more)).float().view(-1, SIZE)
        loss = imitation_loss(scores[:count], alike)
        if wanted is not None:
            loss = labelled_loss(scores[count:], wanted) + KEPT * loss
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
    parser.add_argument("--few", action="store_true", help="every fiftieth question, for a trial")
    given = parser.parse_args()
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
    train(model, imitation, None, given.first, 1e-4)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for run in given.runs.split(","):
        model.load_state_dict(start)
        torch.manual_seed(SEED)
        train(model, imitation, Labelled(data, run), given.steps, 5e-5)
        held = {form: scores_of(model, measured, form) for form in ("alone", "behind")}
        with gzip.open(given.out / f"scores_{run}.json.gz", "wt") as file:
            json.dump(held, file)
        if run == "full":
            torch.save({name: value.half() for name, value in model.state_dict().items()}, given.out / "model.pt")
            export(model, given.out / "model.onnx")
            model.to(DEVICE)


if __name__ == "__main__":
    main()
