"""Make the table: the teacher's vector of each word piece, then taught to imitate its similarities of whole texts.

`python tools/vectors/train.py IN OUT [--steps N]` with the files of `prepare.py` in IN; writes `rows.npy` and
`scales.npy` to OUT. Needs torch and numpy alone. Minutes on one GPU; on a CPU, good for a trial of a few steps.
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
    order = lengths.argsort()
    for part in order.split(batch):
        longest = int(lengths[part].max())
        ids = torch.zeros(len(part), longest + 2, dtype=torch.long, device=DEVICE)
        ids[:, 0] = BEGIN
        ids[:, 1:-1] = texts[part, :longest].long()
        ids.scatter_(1, lengths[part, None] + 1, END)
        mask = torch.arange(longest + 2, device=DEVICE)[None] < lengths[part, None] + 2
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            found[part] = encode(ids * mask, mask)
    return found


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


def pooled(table: Tensor, ids: Tensor, lengths: Tensor, dropped: float) -> Tensor:
    """The vectors of texts: sums of rows, of length 1. Pieces are left out at random."""
    ids = ids[:, : int(lengths.max())].long()
    kept = (torch.arange(ids.shape[1], device=DEVICE)[None] < lengths[:, None]) & (
        torch.rand(ids.shape, device=DEVICE) >= dropped
    )
    flat = F.embedding(ids * kept, table) * kept[..., None]
    return F.normalize(flat.sum(1) + 1e-6, dim=-1)


def train(texts: Tensor, lengths: Tensor, wanted: Tensor, start: Tensor, steps: int) -> Tensor:
    """The table after so many steps."""
    table = torch.nn.Parameter(start.clone())
    sharpness = torch.nn.Parameter(torch.tensor(3.0, device=DEVICE))
    optimizer = torch.optim.Adam([{"params": [table], "lr": 2e-3}, {"params": [sharpness], "lr": 1e-2}])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.02, 1 - step / steps))
    began, pull = time.monotonic(), torch.ones(PIECES, 1, device=DEVICE)
    pull[SPECIAL] = 0
    for step in range(steps):
        drawn = torch.randint(len(texts), (BATCH,), device=DEVICE)
        near = (wanted[drawn[:ASKED]] @ wanted.T).topk(NEAR + 1).indices[:, 1:].flatten()
        drawn = torch.cat([drawn, near]).unique()
        same = torch.eye(len(drawn), dtype=torch.bool, device=DEVICE)
        theirs = wanted[drawn] @ wanted[drawn].T
        ours = pooled(table, texts[drawn], lengths[drawn], DROPPED)
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
    return table.detach()


def write(folder: Path, table: Tensor) -> None:
    """The table in 8-bit numbers with one scale a row."""
    numbers = table.float().cpu().numpy()
    numbers[SPECIAL] = 0
    scales = np.abs(numbers).max(1) / 127
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "rows.npy", np.round(numbers / np.maximum(scales, 1e-12)[:, None]).astype(np.int8))
    np.save(folder / "scales.npy", scales.astype(np.float32))


def main() -> None:
    """Read, teach, train, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, nargs="*", default=[20_000], help="0 is the table without training")
    parser.add_argument("--texts", type=int, help="only so many texts, for a trial")
    given = parser.parse_args()
    with np.load(given.folder / "texts.npz") as file:
        lengths = file["lengths"][: given.texts]
        rows = np.zeros((len(lengths), lengths.max()), np.int32)
        rows[np.arange(rows.shape[1])[None] < lengths[:, None]] = file["pieces"][: lengths.sum()]
    texts, counts = torch.from_numpy(rows).to(DEVICE), torch.from_numpy(lengths).long().to(DEVICE)
    encode = read_teacher(given.folder / "teacher.npz")
    start = first_table(encode)
    wanted = teach(encode, texts, counts)
    print(f"{len(texts)} texts on {DEVICE}, torch {torch.__version__}", flush=True)  # noqa: T201
    for steps in given.steps:
        torch.manual_seed(SEED)
        table = train(texts, counts, wanted, start, steps) if steps else start
        write(given.out / str(steps) if len(given.steps) > 1 else given.out, table)


if __name__ == "__main__":
    main()
