"""What a command does not load before it is known that it needs it: most of the time of a command is its imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.argv = ["trimtab", *sys.argv[1:]]
from trimtab.cli import main
try:
    main()
finally:
    print("\\n".join(["", "LOADED", *sys.modules]), file=sys.stderr)
"""
HEAVY = {"aiohttp", "kopf", "kubernetes", "matplotlib", "numba", "numpy", "prometheus_client", "pydantic_settings",
         "ray", "scipy", "structlog", "torch", "trimtab.api.v1alpha1", "trimtab.settings"}  # fmt: skip
"""What stays out of the way until a command does its work."""
READING = ("doctor", "explain", "get", "plan", "policies", "snapshot", "whatif")
SERVING = ("agent", "controller", "extender")


def loaded(*words: str, **environment: str) -> set[str]:
    """The modules that `trimtab WORDS` has loaded when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, env={**os.environ, **environment}
    )
    return set(done.stderr.partition("LOADED\n")[2].split())


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_version_takes_not_even_what_reads_arguments(word: str) -> None:
    modules = loaded(word)
    assert "trimtab.cli" in modules
    assert not modules & {*HEAVY, "pydantic", "rich", "trimtab_policy.types"}


@pytest.mark.parametrize("name", [*READING, *SERVING])
def test_help_loads_nothing_that_does_the_work(name: str) -> None:
    modules = loaded(name, "--help")
    assert "trimtab.commands.options" in modules
    assert not modules & HEAVY


@pytest.mark.parametrize("words", ["trimtab get ", "trimtab explain --", "trimtab plan --", "trimtab policies -o "])
def test_completion_loads_nothing_that_does_the_work(words: str) -> None:
    last = str(words.count(" "))
    modules = loaded(_TRIMTAB_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=last)
    assert "trimtab.commands.options" in modules
    assert not modules & HEAVY


KUBECONFIG = """\
current-context: c
clusters: [{name: k, cluster: {server: "http://127.0.0.1:PORT"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
"""


def test_a_look_at_a_cluster_takes_the_small_way(tmp_path: Path, unused_tcp_port: int) -> None:
    """A kubeconfig with a token needs no kubernetes.aio; logs and metrics are for processes that stay."""
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(KUBECONFIG.replace("PORT", str(unused_tcp_port)))
    modules = loaded("get", "nodes", "--kubeconfig", str(kubeconfig))
    assert {"aiohttp", "trimtab.observe.snapshot"} <= modules
    served = {"kubernetes", "kopf", "structlog", "prometheus_client", "scipy", "torch"}
    assert not modules & served
    modules = loaded("get", "jobs", "--kubeconfig", str(kubeconfig))
    assert {"aiohttp", "trimtab.commands.job_list"} <= modules
    assert not modules & {*served, "numpy", "trimtab.observe.snapshot"}


def test_names_of_jobs_are_completed_without_the_client_of_commands(tmp_path: Path, unused_tcp_port: int) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(KUBECONFIG.replace("PORT", str(unused_tcp_port)))
    asked = {"_TRIMTAB_COMPLETE": "complete_bash", "COMP_WORDS": "trimtab explain a", "COMP_CWORD": "2"}
    modules = loaded(KUBECONFIG=str(kubeconfig), **asked)
    assert "trimtab.kube.slim_auth" in modules
    assert not modules & HEAVY
