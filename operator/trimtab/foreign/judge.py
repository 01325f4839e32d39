"""Whether a job trains an LLM: by its trainer, its model and its arguments; and what else it is, where that shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from trimtab.foreign.arguments import Run

FAMILIES: Final = (
    *("llama", "mistral", "mixtral", "qwen", "gemma", "gpt", "bert", "roberta", "t5", "opt", "bloom", "falcon", "phi"),
    *("deepseek", "olmo", "mamba", "nemotron", "granite", "pythia", "starcoder", "glm", "chatglm", "baichuan", "yi"),
    *("internlm", "smollm", "dbrx", "grok", "jamba", "minicpm", "kimi", "minimax", "ernie", "hunyuan", "codellama"),
    *("vicuna", "stablelm", "redpajama", "mpt", "gptneox", "neox", "esm", "evo2", "tulu", "zephyr", "step", "dolci"),
    *("dolly", "alpaca", "codegen", "santacoder", "moonlight", "ling", "poro", "viking", "apertus", "eurollm", "llm"),
)
_VAGUE: Final = frozenset({"llm", "step", "opt", "phi", "ling", "esm"})
_WORD = re.compile(r"[a-z]+", re.ASCII)
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


def family(text: str) -> str:
    """The family of language models that a text names; empty for none."""
    return next((word for word in _WORD.findall(text.casefold()[:2000]) if word in FAMILIES), "")


def model_in(program: str) -> str:
    """What the name of a program says about its model: `ray_train_llama2_7b.py` -> `llama2_7b`; empty for nothing."""
    pieces = re.split(r"[_.-]", program.casefold()[:100])
    for index, piece in enumerate(pieces):
        if len(found := family(piece)) > 2 and found not in _VAGUE:
            sizes = [
                each for each in pieces[index + 1 : index + 3] if re.fullmatch(r"v?[0-9]{1,4}[bm]?", each, re.ASCII)
            ]
            return "_".join((piece, *sizes))
    return ""


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
    if any(found not in _VAGUE for word in words if (found := family(word))):
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
