"""What `hack/kind/up` tells kind: the nodes, how many GPUs workers say they have, and which directory they share.

`python -m hack.kind.config --help` says how it is called.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from trimtab_local.fake import products

PRODUCT: Final = "NVIDIA-H100-80GB-HBM3"
"""As hack/kind/values.yaml has it, by which agents play."""
SHARED: Final = "/shared"
"""For checkpoints: a `hostPath` that is the same on all nodes."""


def cluster(given: argparse.Namespace) -> dict[str, Any]:
    """A configuration of kind, by the options of the command line."""
    labels = products.labels(PRODUCT, given.gpus, machine="kind", driver="580.95.05", cuda="13.0")
    scores = {"oomScoreAdj": 0} if given.no_oom_scores else {}
    kubelet = scores | ({"failCgroupV1": False} if given.cgroup_v1 else {})
    patches = (
        {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", **kubelet},
        {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", **scores},
    )
    shared = [{"hostPath": given.shared, "containerPath": SHARED}]
    worker = {"role": "worker", "image": given.image, "labels": labels, "extraMounts": shared}
    return {
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "kind": "Cluster",
        "name": given.name,
        "nodes": [{"role": "control-plane", "image": given.image}, *(worker for _ in range(given.workers))],
        "kubeadmConfigPatches": [json.dumps(patch) for patch in patches if len(patch) > 2],
    }


def main() -> None:
    """Print the configuration that the command line asks for."""
    parser = argparse.ArgumentParser(description="Print a configuration of kind.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--image", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=2, help="per worker")
    parser.add_argument("--shared", required=True, help=f"directory of this machine that workers have as {SHARED}")
    parser.add_argument("--cgroup-v1", action="store_true", help="let kubelets run on hosts with cgroup v1")
    parser.add_argument("--no-oom-scores", action="store_true", help="for nodes that may not lower them")
    print(json.dumps(cluster(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
