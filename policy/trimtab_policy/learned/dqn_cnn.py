"""ADLRO's network (seed 002) as a policy: a convolution over the GPU matrix, then two layers for every option.

Section 4 of the paper has "a convolutional neural network backbone and two fully connected layers" and no more. Here,
so that one set of weights serves clusters, queues and menus of any size (trained by `agents.dqn_cnn`):

    cells  = relu(conv(relu(conv(GPU matrix))))
    Q(job, option) = FC2 relu(FC1 [cells of the option's place, job, option, hypervector, context])
    Q(wait)        = the same of no place, no option and the mean job          context = [mean of all cells, cluster]

FC1 is linear, so its parts are computed where they are few, once for every place, job and hypervector, and added up for
the options that are allowed; the others get minus infinity.

In a cluster the GPU matrix has a row for every pool of GPUs of one type, and as columns the shares of its nodes with 0,
1, 2-3, 4-7, 8 or more free GPUs; what else is known of a pool are further channels. The kernel is one row high: types
have no order. The place of an option is the row of its pool. Hypervectors (`hyperdimensional`) encode the three
variables of section 3.2: the GPU model as the job on offer meets it (how fast it is for this job, how many GPUs a node
has: offers carry no names), the utilisation of the pool, and the priority of the job, which is age / (age + run time),
the order of highest response ratio next (Brinch Hansen 1971).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab_policy.learned import hyperdimensional as hd
from trimtab_policy.learned import store
from trimtab_policy.learned.layers import Single, convolution, dense, relu
from trimtab_policy.learned.offers import Answers, OfferPolicy, best
from trimtab_policy.observation.encode import OCCUPANCY, POOL, SCHEMA, OfferBatch
from trimtab_policy.policy import Kind

Inputs = dict[str, NDArray[Any]]
"""What the network takes of n states with p places, j jobs and a options.

`grid` (n, channels, rows, columns), `weight` (n, p) of the places in the mean, `cluster` (n, features), `jobs`
(n, j, features); of the options (n, a) `place`, `job` and `code` (row of the hypervectors), `options` (n, a, features).
"""

_SPEEDS, _NODES, _USES, _PRIORITIES = 8, 4, 8, 4
"""Bands of what the hypervectors of offers encode."""
_PLAIN = [feature for feature in range(POOL) if not OCCUPANCY.start <= feature < OCCUPANCY.stop]


class DqnCnn(OfferPolicy):
    """The option of the highest Q."""

    name = "dqn_cnn"
    kind = Kind.LEARNED
    source = "ADLRO, Freederia Research Archive"

    def __init__(self, weights: str | Path = "dqn_cnn") -> None:
        """`weights`: a file, or the name of shipped ones (`store.load`); read when the first job is offered."""
        self._source = weights

    @cached_property
    def _network(self) -> Network:
        return Network(store.load(self._source, SCHEMA).arrays, codebook)

    def choose(self, offers: OfferBatch) -> Answers:
        """As of `OfferPolicy`. Raises BadAnswer for what is no number, `store.WeightsError` for bad weights."""
        return best(self.name, self._network.values(inputs(offers), offers.mask), offers)


class Network:
    """The network of the module with trained weights."""

    def __init__(
        self,
        weights: Mapping[str, NDArray[Any]],
        hypervectors: Callable[[int], hd.Hypervectors],
        whole_rows: bool = True,
    ) -> None:
        """`hypervectors` gives the table of codes of a dimension; `whole_rows` as of `cells`.

        Raises store.WeightsError where the weights are of another network.
        """
        if missing := sorted(set(NAMES) - set(weights)):
            raise store.WeightsError(f"these are not weights of dqn_cnn: they lack {', '.join(missing)}")
        self._of = {name: np.asarray(values, dtype=np.float32) for name, values in weights.items()}
        self._whole_rows = whole_rows
        coded = self._of.get("code.weight")
        self._codes = None if coded is None else dense(hypervectors(coded.shape[1]).astype(np.float32), coded)

    def values(self, inputs: Inputs, mask: NDArray[np.bool_]) -> Single:
        """(n, a + 1) values, the last one that of waiting; minus infinity where the mask is False."""
        of = self._of
        at = cells(self._convolve(inputs["grid"]), self._whole_rows)
        mean = np.einsum("npf,np->nf", at, inputs["weight"])
        context = np.concatenate([mean, inputs["cluster"]], axis=1)
        row, option = np.nonzero(mask[:, :-1])
        waits = np.flatnonzero(mask[:, -1])
        places, around = dense(at, of["place.weight"], of["place.bias"]), dense(context, of["context.weight"])
        jobs = dense(inputs["jobs"], of["job.weight"])
        hidden = places[row, inputs["place"][row, option]] + jobs[row, inputs["job"][row, option]] + around[row]
        hidden += dense(inputs["options"][row, option], of["option.weight"])
        if self._codes is not None:
            hidden += self._codes[inputs["code"][row, option]]
        hidden = np.concatenate([hidden, of["nowhere"] + jobs.mean(axis=1)[waits] + around[waits]])
        found = np.full(mask.shape, -np.inf, dtype=np.float32)
        allowed = np.append(row, waits), np.append(option, np.full_like(waits, mask.shape[1] - 1))
        found[allowed] = dense(relu(hidden), of["value.weight"], of["value.bias"])[:, 0]
        return found

    def _convolve(self, grid: Single) -> Single:
        of = self._of
        first = relu(convolution(grid, of["conv1.weight"], of["conv1.bias"]))
        return relu(convolution(first, of["conv2.weight"], of["conv2.bias"]))


NAMES = (
    *(f"{layer}.{part}" for layer in ("conv1", "conv2", "place", "value") for part in ("weight", "bias")),
    *(f"{layer}.weight" for layer in ("job", "option", "context")),
    "nowhere",
)
"""Weights that every such network has; `code.weight` only where there are hypervectors."""


def cells(convolved: Any, whole_rows: bool) -> Any:
    """(n, places, features) of (n, channels, rows, columns): a place is a row, or else a single cell.

    Works on arrays of numpy and of torch alike.
    """
    n, channels, rows, columns = convolved.shape
    if whole_rows:
        return convolved.swapaxes(1, 2).reshape(n, rows, channels * columns)
    return convolved.reshape(n, channels, rows * columns).swapaxes(1, 2)


def inputs(offers: OfferBatch) -> Inputs:
    """What the network takes of offers."""
    shares = offers.pools[:, :, OCCUPANCY]
    others = np.moveaxis(offers.pools[:, :, _PLAIN], 2, 1)
    plain = np.broadcast_to(others[..., None], (*others.shape, shares.shape[2]))
    return {
        "grid": np.concatenate([shares[:, None], plain], axis=1),
        "weight": offers.pools[:, :, 4],
        "cluster": offers.cluster,
        "jobs": offers.job[:, None],
        "options": offers.options,
        "place": offers.kind,
        "job": np.zeros_like(offers.kind),
        "code": np.take_along_axis(_codes(offers), offers.kind, axis=1),
    }


def _codes(offers: OfferBatch) -> NDArray[np.int64]:
    """(n, types) rows of the codebook."""
    speed, node = hd.band(offers.pools[:, :, 0], _SPEEDS), hd.band(offers.pools[:, :, 2], _NODES)
    use, priority = hd.band(1 - offers.pools[:, :, 3], _USES), hd.band(offers.job[:, 3], _PRIORITIES)
    codes: NDArray[np.int64] = ((speed * _NODES + node) * _USES + use) * _PRIORITIES + priority[:, None]
    return codes


@cache
def codebook(dimension: int) -> hd.Hypervectors:
    """(bands of speed x node size x utilisation x priority, dimension) what offers are encoded by."""
    bands = [np.linspace(0, 1, count) for count in (_SPEEDS, _NODES, _USES, _PRIORITIES)]
    speed, node, use, priority = (grid.ravel() for grid in np.meshgrid(*bands, indexing="ij"))
    gpu = hd.bind(hd.level("speed for the job", speed, dimension), hd.level("GPUs of a node", node, dimension))
    return hd.situation(gpu, use, priority)
