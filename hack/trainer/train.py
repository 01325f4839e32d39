"""Train a small GPT with what Trimtab gives to the pods of a gang. One file: copy it, and put your model into it.

    torchrun train.py --checkpoints DIRECTORY          # or `python train.py`, where a pod has one GPU, or none

What a training needs that Trimtab is to stop, move and resize:

- *Nothing depends on the number of ranks.* Step S trains the samples (S-1)·B to S·B-1, whoever computes them; the
  global batch B stays what the user asked for, by gradient accumulation. A sample follows from its number alone.
- *Checkpoints load at any world size.* torch.distributed.checkpoint writes a file per rank, and `.metadata` when all
  are there: a directory without it is no checkpoint. DIRECTORY must be storage that all pods share.
- *It is asked before it is stopped.* `Reporter.should_checkpoint()` on any rank, or SIGTERM: all ranks hear of it in
  the reduction that sums the loss. They save the same step, and end with code 143 (0 under torchrun, which makes 1 of
  every other code).
- *It goes on where it was.* The newest whole checkpoint is loaded; one older than TRIMTAB_RESUME_STEP is refused: the
  work between would be lost without a word.

Data parallel only: DDP for ZeRO stage 0, FSDP2 for the others (TRIMTAB_ZERO_STAGE, TRIMTAB_SHARD); NCCL on GPUs, gloo
on CPUs. Steps and losses are JSON lines on stdout and in --history. Loading unpickles: only use checkpoints you trust.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trimtab.report import Reporter

BYTES = 256
"""The vocabulary: text is trained on as bytes."""
STRIDES = 16
"""Of the built-in samples: few enough to be learned in some hundred steps."""
ASKED_TO_STOP = 143
WHOLE = ".metadata"
"""The file that torch.distributed.checkpoint writes last."""
SHAPE = ("global_batch", "sequence", "layers", "width", "heads", "seed")
"""Options that may not change between a checkpoint and who loads it."""


class Block(nn.Module):
    """One pre-norm transformer layer: [batch, sequence, width] -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Causal attention, then the feed-forward network, each added to what came in."""
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    """A decoder of `layers` blocks with learned positions: [batch, sequence] of bytes -> logits of the next one."""

    def __init__(self, layers: int, width: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(BYTES, width), nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False)
        for table in (self.tokens, self.positions, self.head):
            nn.init.normal_(table.weight, std=0.02)  # as in GPT-2: PyTorch's own are fifty times as large

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, [batch, sequence, BYTES]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Samples:
    """Sample number -> `sequence` + 1 bytes; always the same for the same number and seed.

    With a file: a place in it by chance. Without: bytes that rise by one of 16 strides, which takes attention to see.
    """

    def __init__(self, sequence: int, seed: int, text: Path | None) -> None:
        self._sequence, self._seed = sequence, seed
        self._text = None if text is None else torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8)
        if self._text is not None and len(self._text) <= sequence:
            raise ValueError(f"{text} has {len(self._text)} bytes, and one sample alone needs {sequence + 1}")

    def __getitem__(self, number: int) -> Tensor:
        """[sequence + 1], int64."""
        # PyTorch's generator looks at 32 bits of its seed, so that seeds and numbers would meet; this one at all of it.
        chance = random.Random(f"{self._seed} {number}")  # noqa: S311 - data for a training
        if self._text is not None:
            start = int(chance.random() * (len(self._text) - self._sequence))
            return self._text[start : start + self._sequence + 1].long()
        first, stride = int(chance.random() * BYTES), 1 + int(chance.random() * STRIDES)
        return (first + stride * torch.arange(self._sequence + 1)) % BYTES

    def batch(self, first: int, size: int) -> Tensor:
        """Samples `first` to `first` + `size` - 1: [size, sequence + 1]."""
        return torch.stack([self[number] for number in range(first, first + size)])


def options_of(arguments: list[str] | None, env: Mapping[str, str]) -> argparse.Namespace:
    """Options; what is not given is as Trimtab's plan says. Ends with code 2 on what this script cannot do."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory that all pods share")
    parser.add_argument("--steps", **number, default=int(env.get("TRIMTAB_STEPS", 200)))
    parser.add_argument("--global-batch", **number, default=int(env.get("TRIMTAB_GLOBAL_BATCH_SIZE", 16)))
    parser.add_argument("--micro-batch", **number, default=int(env.get("TRIMTAB_MICRO_BATCH_SIZE", 0)))
    parser.add_argument("--sequence", **number, default=int(env.get("TRIMTAB_SEQUENCE_LENGTH", 64)))
    parser.add_argument("--zero", **number, default=int(env.get("TRIMTAB_ZERO_STAGE", 0)), help="0 (DDP) to 3 (FSDP)")
    parser.add_argument("--shard", **number, default=int(env.get("TRIMTAB_SHARD", 0)), help="ranks that share a copy")
    parser.add_argument("--layers", **number, default=2)
    parser.add_argument("--width", **number, default=64)
    parser.add_argument("--heads", **number, default=4)
    parser.add_argument("--rate", type=float, default=5e-3, help="peak learning rate of AdamW")
    parser.add_argument("--warmup", **number, default=10, help="steps until the learning rate is at its peak")
    parser.add_argument("--seed", **number, default=0)
    parser.add_argument("--text", type=Path, help="file to train on, byte by byte; without one, made-up samples")
    parser.add_argument("--every", **number, default=50, help="steps between checkpoints that nobody asked for")
    parser.add_argument("--keep", **number, default=2, help="checkpoints to keep")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after a step, to see more of it")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a rank waits for the others")
    # Not `--log`: torchrun takes that for an abbreviation of options of its own, even behind the script's name.
    parser.add_argument("--history", type=Path, help="file to append the JSON lines to")
    options = parser.parse_args(arguments)
    for degree in ("TP", "PP", "CP", "EP"):
        if int(env.get(f"TRIMTAB_{degree}", 1)) > 1:
            parser.error(f"TRIMTAB_{degree}={env[f'TRIMTAB_{degree}']}: only data is divided here, mode must be Data")
    if env.get("TRIMTAB_PRECISION", "BF16") not in ("BF16", "FP32"):
        parser.error(f"TRIMTAB_PRECISION={env['TRIMTAB_PRECISION']}, but it is BF16 or FP32 here")
    if options.width % options.heads:
        parser.error(f"{options.heads} heads do not divide a width of {options.width}")
    return options


def join(env: dict[str, str] | os._Environ[str], timeout: float) -> torch.device:
    """Become a rank of the gang. Without torchrun, a pod is one rank (`PET_*`); outside Trimtab, the only one."""
    if "RANK" not in env:
        if env.get("PET_NPROC_PER_NODE", "1") != "1":
            sys.exit(f"train: {env['PET_NPROC_PER_NODE']} ranks per pod: start this script with torchrun")
        usual = {"RANK": ("NODE_RANK", "0"), "WORLD_SIZE": ("NNODES", "1")}
        usual |= {"MASTER_ADDR": ("MASTER_ADDR", "127.0.0.1"), "MASTER_PORT": ("MASTER_PORT", "0")}
        for name, (twin, alone) in usual.items():
            env[name] = env.get(f"PET_{twin}", alone)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(env.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout))
    return device


def build(options: argparse.Namespace, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same model on every rank, from the seed; then divided as the plan says."""
    if options.zero and device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        remedy = "set spec.parallelism.zeroStage to 0"
        sys.exit(f"train: ZeRO on CPUs needs PyTorch 2.7, and this is {torch.__version__}: {remedy}")
    torch.manual_seed(options.seed)
    model: nn.Module = Gpt(options.layers, options.width, options.heads, options.sequence).to(device)
    world = dist.get_world_size()
    if options.zero:
        shard = options.shard or world
        if world % shard:
            sys.exit(f"train: groups of {shard} ranks do not divide {world}")
        shape, axes = ((world,), ("shard",)) if shard == world else ((world // shard, shard), ("copy", "shard"))
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=axes)
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh, reshard_after_forward=options.zero == 3)
    elif world > 1:
        model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95))


def update(
    options: argparse.Namespace,
    step: int,
    samples: Samples,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> Tensor:
    """One step over this rank's part of the global batch; its mean loss, not yet averaged over the ranks."""
    mine = options.global_batch // dist.get_world_size()
    micro = min(options.micro_batch or mine, mine)
    first = (step - 1) * options.global_batch + dist.get_rank() * mine
    bf16 = device.type == "cuda" and os.environ.get("TRIMTAB_PRECISION", "BF16") == "BF16"  # CPUs are slower with it
    total = torch.zeros((), device=device)
    for done in range(0, mine, micro):
        size = min(micro, mine - done)  # the last one may be smaller
        tokens = samples.batch(first + done, size).to(device)
        with _synchronised(model, last=done + size == mine):
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()) * (size / mine)
            loss.backward()
        total += loss.detach()
    warm = min(1.0, step / max(1, options.warmup))
    for group in optimizer.param_groups:
        group["lr"] = options.rate * warm * (0.55 + 0.45 * math.cos(math.pi * min(1.0, step / options.steps)))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


def _synchronised(model: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[None]:
    """Gradients travel with the last micro-batch of a step only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return contextlib.nullcontext()


class Checkpoints:
    """`DIRECTORY/step-00000042`: one file per rank that wrote it, the options, and `.metadata` when it is whole."""

    def __init__(self, options: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._root, self._keep, self._leads = options.checkpoints, options.keep, dist.get_rank() == 0
        self._shape = {name: getattr(options, name) for name in SHAPE}
        self._model, self._optimizer = model, optimizer

    def steps(self) -> list[int]:
        """Steps of whole checkpoints, newest last."""
        return sorted(int(path.parent.name.removeprefix("step-")) for path in self._root.glob(f"step-*/{WHOLE}"))

    def save(self, step: int) -> None:
        """All ranks together; when it returns, the checkpoint is whole."""
        if self._agreed(step in self.steps()):
            return
        directory = self._directory(step)
        if self._leads:
            if directory.exists():
                shutil.rmtree(directory)  # of ranks that were killed while they wrote
            directory.mkdir(parents=True)
            (directory / "options.json").write_text(json.dumps(self._shape))
        dist.barrier()
        model, optimizer = get_state_dict(self._model, self._optimizer)
        save({"model": model, "optimizer": optimizer}, checkpoint_id=directory)
        for old in self.steps()[: -self._keep] if self._leads else []:
            (self._directory(old) / WHOLE).unlink()  # from now on it is none, even if we are killed here
            shutil.rmtree(self._directory(old))

    def load(self, known: int) -> int:
        """Load the newest one; its step, or 0. Ends the program where it is older than `known`, or of other options."""
        step = self._agreed((self.steps() or [0])[-1])
        if step < known:
            sys.exit(f"train: step {known} was saved, and the newest checkpoint in {self._root} is of step {step}")
        if step:
            saved = json.loads((self._directory(step) / "options.json").read_text())
            if saved != self._shape:
                sys.exit(f"train: the checkpoint of step {step} was made with {saved}, not with {self._shape}")
            model, optimizer = get_state_dict(self._model, self._optimizer)
            load({"model": model, "optimizer": optimizer}, checkpoint_id=self._directory(step))
            set_state_dict(self._model, self._optimizer, model_state_dict=model, optim_state_dict=optimizer)
        return step

    def _directory(self, step: int) -> Path:
        return Path(self._root) / f"step-{step:08d}"

    def _agreed(self, value: int) -> int:
        """What rank 0 sees: shared file systems show news to one client before another."""
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]


class Log:
    """JSON lines of rank 0, on stdout and in a file."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a", buffering=1) if path and dist.get_rank() == 0 else None

    def __call__(self, event: str, step: int, **figures: Any) -> None:
        """One line, with the plan's epoch and the number of ranks."""
        if dist.get_rank():
            return
        epoch = int(os.environ.get("TRIMTAB_EPOCH", 0))
        line = json.dumps({"event": event, "step": step, "epoch": epoch, "ranks": dist.get_world_size()} | figures)
        print(line, flush=True)
        if self._file:
            print(line, file=self._file)


def train(options: argparse.Namespace, device: torch.device) -> bool:
    """Train until the last step; True where it was asked to stop before."""
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    reporter, samples = Reporter(), Samples(options.sequence, options.seed, options.text)
    model, optimizer = build(options, device)
    checkpoints, log = Checkpoints(options, model, optimizer), Log(options.history)
    start = checkpoints.load(int(os.environ.get("TRIMTAB_RESUME_STEP", 0)))
    log("started", start, device=device.type, zero=options.zero)
    for step in range(start + 1, options.steps + 1):
        began = time.monotonic()
        loss = update(options, step, samples, model, optimizer, device)
        asked = reporter.should_checkpoint() or bool(terminated)
        heard = torch.stack([loss, torch.tensor(float(asked), device=device)])
        dist.all_reduce(heard)  # any rank's word is everybody's, in the same step
        mean, stop = heard[0].item() / dist.get_world_size(), heard[1].item() > 0
        if options.pause:
            time.sleep(options.pause)
        log("step", step, loss=mean, seconds=round(time.monotonic() - began, 4))
        reporter.step(step, tokens=options.global_batch * options.sequence, loss=mean)
        if stop or step % options.every == 0 or step == options.steps:
            checkpoints.save(step)
            reporter.checkpoint(step)
            log("saved", step)
        if stop and step < options.steps:
            reporter.checkpointed(step)
            reporter.close()
            log("stopped", step)
            return True
    reporter.close()  # sends what is left
    peak = {"peak_memory": torch.cuda.max_memory_allocated(device)} if device.type == "cuda" else {}
    log("done", options.steps, **peak)
    return False


def leave(code: int) -> NoReturn:
    """End the process with this code, and leave out how the interpreter would end it.

    Threads of gloo may give back Python objects a moment after the last reduction. Where the interpreter is ending by
    then, it ends them, inside C++ that does not bear it: "terminate called without an active exception", SIGABRT, and
    a gang that had saved everything has failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 143 after a stop that was asked for, or 0 where torchrun would make a failure of it."""
    options = options_of(arguments, os.environ)
    device = join(os.environ, options.timeout)
    if options.global_batch % dist.get_world_size():
        sys.exit(f"train: {dist.get_world_size()} ranks do not divide a global batch of {options.global_batch}")
    stopped = train(options, device)
    dist.barrier()  # rank 0 has told that the checkpoint is safe: now all may end
    dist.destroy_process_group()
    return ASKED_TO_STOP if stopped and "TORCHELASTIC_RUN_ID" not in os.environ else 0


if __name__ == "__main__":
    leave(main())
