"""Make the table: the teacher's vector of each word piece, then taught to imitate its similarities of whole texts.

`python tools/vectors/train.py IN OUT [--steps N]` with the files of `prepare.py` in IN; writes `table.npy`, `codes.npy`
and `spreads.npy` to OUT, for `pack.py`. Needs torch and numpy alone. Minutes on one GPU; on a CPU, good for a trial.

In the second half of the steps the rows are rounded as they will be packed, so that the table learns to do with what is
left: three numbers of a row share one of 256 codes, after division by the spread of each number over all rows and by
the scale of the row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

SEED = 0
PIECES, DIMENSION, HEADS, LAYERS = 30_522, 256, 12, 6
BEGIN, END, SPECIAL = 101, 102, [0, 100, 101, 102, 103]
BATCH, ASKED, NEAR = 512, 128, 4
"""Texts of a step drawn at random; of so many of them the nearest texts are added, so many each."""
SHARPNESS = 20.0
DROPPED = 0.1
PULL = 0.02
SEEN = 200
"""Pieces that the teacher sees at once: of a longer text, the mean of its parts."""
CODES, SHARED, ROUNDED = 256, 3, 0.5
"""So many codes for so many numbers of a row; and the share of the steps after which rows are rounded to them."""
REFITTED, ROUNDS, DRAWN = 1_000, 12, 400_000
"""Codes are fitted anew after so many steps, in so many rounds, on so many triples."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def read_teacher(path: Path) -> Callable[[Tensor, Tensor], Tensor]:
    """The sentence encoder as a function from word pieces and their mask to vectors of length 1."""
    with np.load(path) as file:
        held = {name: torch.from_numpy(file[name].astype(np.float32)).to(DEVICE) for name in file.files}

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, held[f"{name}.weight"], held[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], held[f"{name}.weight"], held[f"{name}.bias"], 1e-12)

    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def encode(ids: Tensor, mask: Tensor) -> Tensor:
        x = held["embeddings.word_embeddings.weight"][ids] + held["embeddings.token_type_embeddings.weight"][0]
        x = norm("embeddings.LayerNorm", x + held["embeddings.position_embeddings.weight"][: ids.shape[1]])
        for place in range(LAYERS):
            name = f"encoder.layer.{place}"
            query, key, value = (heads(linear(f"{name}.attention.self.{w}", x)) for w in ("query", "key", "value"))
            seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
            flat = seen.transpose(1, 2).reshape(x.shape)
            x = norm(f"{name}.attention.output.LayerNorm", x + linear(f"{name}.attention.output.dense", flat))
            inner = F.gelu(linear(f"{name}.intermediate.dense", x))
            x = norm(f"{name}.output.LayerNorm", x + linear(f"{name}.output.dense", inner))
        weight = mask[..., None].to(x.dtype)
        return F.normalize(((x * weight).sum(1) / weight.sum(1)).float(), dim=-1)

    return encode


@torch.no_grad()
def teach(encode: Callable[[Tensor, Tensor], Tensor], texts: Tensor, lengths: Tensor, batch: int = 2048) -> Tensor:
    """The teacher's vectors of texts, which are padded rows of word pieces."""
    found = torch.zeros(len(texts), 384, device=DEVICE)
    for start in range(0, texts.shape[1], SEEN):
        left = (lengths - start).clamp(0, SEEN)
        order = left.argsort()
        for part in order[left[order] > 0].split(batch):
            longest = int(left[part].max())
            ids = torch.zeros(len(part), longest + 2, dtype=torch.long, device=DEVICE)
            ids[:, 0] = BEGIN
            ids[:, 1:-1] = texts[part, start : start + longest].long()
            ids.scatter_(1, left[part, None] + 1, END)
            mask = torch.arange(longest + 2, device=DEVICE)[None] < left[part, None] + 2
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                found[part] += encode(ids * mask, mask) * left[part, None]
    return F.normalize(found, dim=-1)


def first_table(encode: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Model2Vec: each piece by itself, its main directions, and less weight for frequent pieces."""
    alone = torch.arange(PIECES, device=DEVICE)[:, None]
    vectors = teach(encode, alone, torch.ones(PIECES, dtype=torch.long, device=DEVICE))
    centred = vectors - vectors.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    # The vocabulary is in the order of frequency; Zipf's law gives the frequency, SIF the weight.
    share = 1 / (torch.arange(PIECES, device=DEVICE).float() + 2)
    weight = 1e-4 / (1e-4 + share / share.sum())
    table = centred @ directions[:DIMENSION].T * weight[:, None]
    table[SPECIAL] = 0
    return table


def different(texts: Tensor, lengths: Tensor) -> Tensor:
    """The texts with 0 for what is no piece, and for a piece that was there before: the embedder counts each once."""
    held = texts * (torch.arange(texts.shape[1], device=DEVICE)[None] < lengths[:, None])
    for part in torch.arange(len(held), device=DEVICE).split(20_000):
        ordered, places = held[part].sort(dim=1, stable=True)
        again = torch.zeros_like(ordered, dtype=torch.bool)
        again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        held[part] *= ~torch.zeros_like(again).scatter_(1, places, again)
    return held


def pooled(rows: Tensor, places: Tensor) -> Tensor:
    """The vectors of texts: sums of rows, of length 1. Pieces are left out at random."""
    kept = (places > 0) & (torch.rand(places.shape, device=DEVICE) >= DROPPED)
    flat = F.embedding(places * kept, rows) * kept[..., None]
    return F.normalize(flat.sum(1) + 1e-6, dim=-1)


class Rounding:
    """What rows are rounded to: codes for three numbers, and the spread of each number over all rows."""

    def __init__(self, table: Tensor) -> None:
        self.spreads = table.square().mean(0).sqrt()
        even = self._triples(table)[0].reshape(-1, SHARED)
        drawn = even[torch.randint(len(even), (DRAWN,), device=DEVICE)]
        self.codes = drawn[:CODES].clone()
        for _ in range(ROUNDS):
            nearest = self._nearest(drawn)
            count = torch.bincount(nearest, minlength=CODES)[:, None]
            total = torch.zeros_like(self.codes).index_add_(0, nearest, drawn)
            self.codes = torch.where(count > 0, total / count.clamp(min=1), drawn[torch.randint(DRAWN, (CODES,))])

    def __call__(self, rows: Tensor) -> Tensor:
        """The rows as they will be packed; the slope is that of the rows."""
        with torch.no_grad():
            triples, even = self._triples(rows)
            codes = self.codes[self._nearest(triples.reshape(-1, SHARED))].reshape(len(rows), -1)[:, :DIMENSION]
            scale = (even * codes).sum(1, keepdim=True) / codes.square().sum(1, keepdim=True).clamp(min=1e-9)
            change = codes * scale * self.spreads - rows
        return rows + change

    def _triples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        even = rows / self.spreads.clamp(min=1e-9)
        alike = even / even.square().mean(1, keepdim=True).sqrt().clamp(min=1e-9)
        return F.pad(alike, (0, -DIMENSION % SHARED)).reshape(len(rows), -1, SHARED), even

    def _nearest(self, triples: Tensor) -> Tensor:
        return (triples @ self.codes.T - self.codes.square().sum(1) / 2).argmax(1)


def train(texts: Tensor, lengths: Tensor, wanted: Tensor, start: Tensor, steps: int) -> tuple[Tensor, Rounding]:
    """The table after so many steps, and how it is rounded."""
    table = torch.nn.Parameter(start.clone())
    sharpness = torch.nn.Parameter(torch.tensor(3.0, device=DEVICE))
    optimizer = torch.optim.Adam([{"params": [table], "lr": 2e-3}, {"params": [sharpness], "lr": 1e-2}])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.02, 1 - step / steps))
    began, pull, rounding = time.monotonic(), torch.ones(PIECES, 1, device=DEVICE), None
    pull[SPECIAL] = 0
    held = different(texts, lengths)
    for step in range(steps):
        if step >= ROUNDED * steps and (step - int(ROUNDED * steps)) % REFITTED == 0:
            rounding = Rounding(table.detach())
        drawn = torch.randint(len(texts), (BATCH,), device=DEVICE)
        near = (wanted[drawn[:ASKED]] @ wanted.T).topk(NEAR + 1).indices[:, 1:].flatten()
        drawn = torch.cat([drawn, near]).unique()
        same = torch.eye(len(drawn), dtype=torch.bool, device=DEVICE)
        theirs = wanted[drawn] @ wanted[drawn].T
        pieces, places = held[drawn, : int(lengths[drawn].max())].unique(return_inverse=True)
        rows = table[pieces.long()]
        # The least piece is 0, which stands for none: its place is 0 too.
        ours = pooled(rows if rounding is None else rounding(rows), places)
        ours = ours @ ours.T
        loss = F.kl_div(
            F.log_softmax((ours * sharpness.exp()).masked_fill(same, -1e4), -1),
            F.softmax((theirs * SHARPNESS).masked_fill(same, -1e4), -1),
            reduction="batchmean",
        )
        loss = loss + 2 * F.mse_loss(ours, theirs) + PULL * (pull * (table - start) ** 2).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 20) == 0:
            print(f"step {step} loss {loss.item():.4f} {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
    return table.detach(), rounding or Rounding(table.detach())


def write(folder: Path, table: Tensor, rounding: Rounding) -> None:
    """The table before it is rounded, and what it is rounded with."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "table.npy", table.cpu().numpy().astype(np.float16))
    np.save(folder / "codes.npy", rounding.codes.float().cpu().numpy())
    np.save(folder / "spreads.npy", rounding.spreads.float().cpu().numpy())


def main() -> None:
    """Read, teach, train, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, nargs="*", default=[20_000], help="0 is the table without training")
    parser.add_argument("--texts", type=int, help="only so many texts, for a trial")
    parser.add_argument("--longest", type=int, help="only texts of at most so many pieces")
    given = parser.parse_args()
    with np.load(given.folder / "texts.npz") as file:
        lengths = file["lengths"][: given.texts]
        rows = np.zeros((len(lengths), lengths.max()), np.int32)
        rows[np.arange(rows.shape[1])[None] < lengths[:, None]] = file["pieces"][: lengths.sum()]
        if given.longest:
            rows, lengths = rows[lengths <= given.longest, : given.longest], lengths[lengths <= given.longest]
    texts, counts = torch.from_numpy(rows).to(DEVICE), torch.from_numpy(lengths).long().to(DEVICE)
    encode = read_teacher(given.folder / "teacher.npz")
    start = first_table(encode)
    wanted = teach(encode, texts, counts)
    print(f"{len(texts)} texts on {DEVICE}, torch {torch.__version__}", flush=True)  # noqa: T201
    for steps in given.steps:
        torch.manual_seed(SEED)
        table, rounding = train(texts, counts, wanted, start, steps) if steps else (start, Rounding(start))
        write(given.out / str(steps) if len(given.steps) > 1 else given.out, table, rounding)


if __name__ == "__main__":
    main()
