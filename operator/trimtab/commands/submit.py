"""`trimtab submit`: write a job from a few options, and create it."""

from __future__ import annotations

from typing import Annotated

import typer

from trimtab.commands import completion
from trimtab.commands.options import (
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    command,
    kube_settings,
    own_namespace,
)
from trimtab.ui.form import Output

GpuTypesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu-type",
        help="Allow this type alone, such as H100; may be repeated.",
        autocompletion=completion.gpu_types,
    ),
]
OffloadOption = Annotated[
    str, typer.Option(help="Keep the optimizer's states in host memory: Host, or Paged (bitsandbytes).")
]
LauncherOption = Annotated[
    str, typer.Option(help="Torchrun, Torchtitan, Megatron, DeepSpeed or Custom; default: by the command.")
]
EnvOption = Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; may be repeated.")]
MountOption = Annotated[list[str] | None, typer.Option(help="CLAIM:/PATH of a PersistentVolumeClaim; may be repeated.")]
ModeOption = Annotated[
    str,
    typer.Option(help="Auto, Data, Model or Hybrid; default: Data where the launcher takes no flags, else Auto."),
]


@command
async def submit(
    image: Annotated[str, typer.Option(help="Container image of the trainer.")],
    model: Annotated[str, typer.Option(help="Model to train: the name of a preset.", autocompletion=completion.models)],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND [ARG]...]", help="What every pod runs; left out: what the image does."),
    ] = None,
    gpus: Annotated[str, typer.Option(help="How many GPUs: 8, or 8-64 for Trimtab to choose.")] = "1-8",
    tokens: Annotated[str, typer.Option(help="Tokens to train, such as 2B or 300M.")] = "",
    steps: Annotated[str, typer.Option(help="Optimizer steps to train, in place of --tokens.")] = "",
    sequence_length: Annotated[int, typer.Option(help="Tokens of a sequence.", min=1)] = 4096,
    batch: Annotated[int, typer.Option(help="Sequences of an optimizer step, over all GPUs.", min=1)] = 128,
    gpu_types: GpuTypesOption = None,
    lora: Annotated[bool, typer.Option("--lora", help="Train low-rank adapters, with the weights frozen.")] = False,
    qlora: Annotated[bool, typer.Option("--qlora", help="The same, with the frozen weights in 4 bit (NF4).")] = False,
    rank: Annotated[int, typer.Option(help="Rank of the adapters of --lora and --qlora.", min=1)] = 16,
    optimizer: Annotated[str, typer.Option(help="AdamW, AdamW8bit, SGD, Adafactor or Muon.")] = "",
    offload_optimizer: OffloadOption = "",
    launcher: LauncherOption = "",
    mode: ModeOption = "",
    elastic: Annotated[bool, typer.Option("--elastic", help="The number of GPUs may change while it runs.")] = False,
    cpus_per_gpu: Annotated[str, typer.Option(help="CPUs for each GPU, such as 8.")] = "",
    memory_per_gpu: Annotated[str, typer.Option(help="Host memory for each GPU, such as 64Gi.")] = "",
    env: EnvOption = None,
    mount: MountOption = None,
    queue: Annotated[str, typer.Option(help="Queue to count against.", autocompletion=completion.queues)] = "",
    priority_class: Annotated[str, typer.Option(help="PriorityClass of the job.")] = "",
    name: Annotated[str, typer.Option(help="Name of the job; default: the model's, and what makes it unique.")] = "",
    namespace: NamespaceOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the manifest and create nothing.")] = False,
    form: Annotated[Output, typer.Option("--output", "-o", help="Of --dry-run: yaml or json.")] = Output.YAML,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Create a training job from a few options. --dry-run prints its manifest, to start a file with.

    Examples: trimtab submit --model llama3-8b --tokens 2B --gpus 8-64 --image trainer:1 -- torchrun train.py

    trimtab submit --model llama3-70b --qlora --tokens 20M --gpus 2 --gpu-type H100 --image t:1 -- torchrun sft.py

    trimtab submit --model gpt2 --steps 1000 --gpus 2 --gpu-type A100 --image trainer:1 --dry-run > job.yaml
    """
    from trimtab.commands import submission

    asked = submission.Asked(
        model=model, image=image, words=tuple(words or ()), gpus=gpus, tokens=tokens, steps=steps,
        sequence_length=sequence_length, batch=batch, gpu_types=tuple(gpu_types or ()), launcher=launcher, mode=mode,
        lora=lora, qlora=qlora, rank=rank, optimizer=optimizer, offload_optimizer=offload_optimizer,
        elastic=elastic, cpus_per_gpu=cpus_per_gpu, memory_per_gpu=memory_per_gpu, env=tuple(env or ()),
        mounts=tuple(mount or ()), queue=queue, priority_class=priority_class, name=name,
        namespace=namespace or own_namespace(kubeconfig, context),
    )  # fmt: skip
    made = submission.manifest(asked)
    if dry_run:
        submission.show(made, form)
    else:
        await submission.create(kube_settings(kubeconfig, context), made)
