"""Real optimizer steps of a GPT on one device: micro-batches whose gradients add up, mixed precision, AdamW.

What is trained comes in the words of the performance model: `TrainingSpec` (global batch, sequence, number format) and
`ParallelPlan` (micro-batch and recomputation; one device, so all degrees are 1). 16-bit formats are torch's autocast:
weights stay in 32 bit, and products take 16-bit copies of them.
"""

from __future__ import annotations

import torch
from msgspec import UNSET
from torch import Tensor
from torch.optim import AdamW

from trimtab_lab.profiling.gpt import Gpt, check
from trimtab_policy.specs import ModelSpec, Optimizer, ParallelPlan, Precision, Recompute, TrainingSpec

_LEARNING_RATE, _WEIGHT_DECAY = 3e-4, 0.1
_HALF = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def dtype(precision: Precision) -> torch.dtype:
    """In which products are computed."""
    return _HALF.get(precision, torch.float32)


def precisions(device: torch.device) -> tuple[Precision, ...]:
    """Number formats that training on this device can use, the usual one first."""
    if device.type == "cpu":
        return Precision.FP32, Precision.BF16
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Precision.BF16, Precision.FP16, Precision.FP32
    return Precision.FP16, Precision.FP32


class Trainer:
    """A model with its optimizer; `step` trains on one global batch.

    Weights follow from `seed`. Raises ValueError for a model that is no GPT, a micro-batch that does not divide the
    batch, more than one device, a number format that the device lacks, or another optimizer than AdamW.
    """

    def __init__(
        self, spec: ModelSpec, training: TrainingSpec, plan: ParallelPlan, device: torch.device, seed: int = 0
    ) -> None:
        check(spec, training.sequence_length)
        _check(training, plan, device)
        torch.manual_seed(seed)
        self.training, self.plan, self.device = training, plan, device
        with device:
            self.model = Gpt(spec, recompute=plan.recompute is Recompute.FULL)
        self.optimizer = AdamW(self.model.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY, fused=True)
        # FP16 has too little range for gradients: they are computed of a multiple of the loss.
        self._scaler = torch.amp.GradScaler(device.type, enabled=training.precision is Precision.FP16)

    def step(self, tokens: Tensor) -> float:
        """One optimizer step on tokens (batch, sequence + 1); the mean loss before it."""
        # As training frameworks do: the memory of gradients is kept, not freed and found again.
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.accumulate(tokens)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        return float(loss)

    def accumulate(self, tokens: Tensor) -> Tensor:
        """Add the gradients of all micro-batches of tokens (batch, sequence + 1); their mean loss."""
        parts = torch.split(tokens.to(self.device, non_blocking=True), self.plan.micro_batch)
        total = torch.zeros((), device=self.device)
        for part in parts:
            with torch.autocast(self.device.type, dtype(self.training.precision), enabled=self._mixed):
                loss = self.model.loss(part) / len(parts)
            torch.autograd.backward(self._scaler.scale(loss))
            total += loss.detach()
        return total

    @property
    def _mixed(self) -> bool:
        return self.training.precision in _HALF

    @property
    def state_bytes(self) -> int:
        """Weights, gradients and what the optimizer keeps, as far as they exist."""
        weights = list(self.model.parameters())
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        moments = [kept for state in self.optimizer.state.values() for kept in state.values() if torch.is_tensor(kept)]
        return sum(tensor.nbytes for tensor in (*weights, *gradients, *moments))


def batch(spec: ModelSpec, training: TrainingSpec, seed: int = 0) -> Tensor:
    """Synthetic tokens (batch, sequence + 1), evenly distributed: speed does not depend on what they are."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(
        spec.vocab_size, (training.global_batch_size, training.sequence_length + 1), generator=random
    )  # fmt: skip


def _check(training: TrainingSpec, plan: ParallelPlan, device: torch.device) -> None:
    if plan.gpus != 1:
        raise ValueError(f"a profile is of one device, the plan is for {plan.gpus}: {plan.describe()}")
    if plan.micro_batch < 1 or training.global_batch_size % plan.micro_batch:
        raise ValueError(f"micro_batch {plan.micro_batch} must divide the batch of {training.global_batch_size}")
    if plan.recompute is Recompute.SELECTIVE:
        raise ValueError("recompute must be None or Full: the attention kernel keeps no scores to compute anew")
    if training.optimizer is not Optimizer.ADAMW:
        raise ValueError(f"optimizer must be AdamW, got {training.optimizer}")
    for field in ("adapters", "offload"):
        if getattr(training, field) is not UNSET:
            raise ValueError(f"{field} must not be set: a profile is of training all weights, all of it on the device")
    if training.precision not in precisions(device):
        usable = ", ".join(precisions(device))
        raise ValueError(f"precision {training.precision} cannot be trained on {device.type}: use one of {usable}")
