"""Whether a job trains an LLM: by its trainer, its model and its arguments; and what else it is, where that shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from trimtab.foreign.arguments import Run
from trimtab.foreign.families import VAGUE, family

_OTHERS: Final = {
    "MNIST": ("mnist",),
    "an image model": (
        "resnet",
        "resnet18",
        "resnet50",
        "imagenet",
        "cifar",
        "cifar10",
        "vgg",
        "efficientnet",
        "yolo",
        "mobilenet",
        "inception",
        "unet",
        "dcgan",
        "vit",
        "detectron",
    ),
    "image generation": ("stable-diffusion", "diffusers", "sdxl", "dreambooth", "comfyui"),
    "speech": ("whisper", "wav2vec", "deepspeech"),
    "a web server": ("nginx", "httpd", "apache2"),
    "inference": (
        "vllm",
        "sglang",
        "text-generation-inference",
        "tritonserver",
        "tensorrt-llm",
        "trtllm-serve",
        "llama-server",
        "ollama",
        "lmdeploy",
    ),
    "a test of the network": (
        "nccl-tests",
        "nccl-test",
        "all_reduce_perf",
        "rccl-tests",
        "osu-benchmarks",
        "hpl",
        "hpcg",
    ),
    "a benchmark of Horovod or TensorFlow": (
        "tf_cnn_benchmarks",
        "tensorflow_synthetic_benchmark",
        "pytorch_synthetic_benchmark",
    ),
    "no neural network": ("xgboost", "lightgbm", "sklearn", "scikit-learn", "lammps", "gromacs", "openfoam"),
    "a notebook": ("jupyter", "jupyterlab", "notebook"),
    "a demonstration of CUDA": ("cuda-vector-add", "cuda-vectoradd", "vectoradd", "cuda-sample", "gpu-burn"),
    "a sum over pi": ("mpi-pi", "pi"),
}
_OF_IMAGES: Final = frozenset({"image_size", "img_size", "num_classes", "crop_size"})
_IDLE: Final = frozenset(
    {
        "sleep",
        "echo",
        "nvidia-smi",
        "rocm-smi",
        "true",
        "hostname",
        "env",
        "date",
        "ls",
        "cat",
        "tail",
        "printenv",
        "whoami",
    }
)
_LLM_FIELDS: Final = (
    "sequence_length",
    "tensor",
    "pipeline",
    "layers",
    "attention_heads",
    "global_batch_tokens",
    "expert",
    "context",
)


def other_than_llm(
    trainer: str,
    fields: Iterable[str],
    model: str,
    runs: Sequence[Run],
    about: Iterable[str],
    accelerators: bool | None,
) -> str:
    """Why this is no training of an LLM; empty where it is, or may be.

    `about` are names, images, commands and arguments of the job; `accelerators` whether it asks for any, None where
    that is not known.
    """
    said = {name.lower().replace("-", "_") for run in runs for name, _ in run.arguments}
    if not trainer and (sign := next(iter(sorted(said & _OF_IMAGES)), "")):
        return f"it is an image model (--{sign}), not the training of an LLM"
    programs = _words(run.program for run in runs)
    for what, signs in _OTHERS.items():
        if not trainer and (sign := next((sign for sign in signs if sign in programs), "")):
            return f"it is {what} ({sign}), not the training of an LLM"
    if trainer or (model and family(model)) or {*fields} & {*_LLM_FIELDS}:
        return ""
    words = _words(about)
    for what, signs in _OTHERS.items():
        if sign := next((sign for sign in signs if sign in words), ""):
            return f"it is {what} ({sign}), not the training of an LLM"
    if any(found not in VAGUE for word in words if (found := family(word))):
        return ""
    idle = {run.program.rpartition("/")[2] for run in runs}
    if idle and idle <= _IDLE:
        return f"its commands train nothing: {', '.join(sorted(idle))}"
    if accelerators is False:
        return "it asks for no accelerator, and neither a model nor a trainer of LLMs is named"
    return ""


def _words(about: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for text in about:
        for piece in re.split(r"[\s/:=,'\"@]+", text.casefold()[:20_000]):
            found.add(piece.removesuffix(".py"))
            found.update(re.split(r"[._-]+", piece))
            found.update(re.split(r"_", piece))
    return found
