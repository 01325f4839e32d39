"""The performance model: would this model train on these GPUs under this plan, and how fast?

One file a step: `shape` counts a transformer's parameters and FLOPs; `memory` says what the fullest GPU holds; `speed`
says how long a step takes, with the reachable fractions of `hardware`; `space` lists the ways to divide a job;
`plans` picks the fastest that fits. `columns` is the table of plans that they all work on, thousands of rows at a time.

Notation, as in the papers: L layers, h hidden, a heads of width d, g key/value heads, f feed-forward width, E experts,
k of them per token, V vocabulary, s sequence; t, p, c, e, D tensor, pipeline, context, expert and data degree, v chunks
per pipeline rank, b micro-batch, B global batch, m = B/(D b) micro-batches, T = s b/c tokens of one of them.

Memory of one GPU
    parameters    (L/p) (shared/t + E ffn/(t e)) + Vh/t, embedding and output twice where p = 1 and untied
    states        bytes per parameter by format and ZeRO stage          Megatron-LM dist_optimizer.md; arXiv 1910.02054
    activations   T/t (2 (4h + 2ad + 2gd + 3f or 2f) + 2h) a layer      arXiv 2205.05198 eq. 2-5: s b h/t 34 for GPT
                  x layers in flight: L/p min(p, m), interleaved L (1 + (p-1)/(p v));          arXiv 2104.04473
                  full recomputation keeps 2 T h/t a layer, and one layer alive
    logits        T V/t (2 + 4) on the last stage
    required      1.15 x all of these + 2.5 GB for driver context, library workspaces and collective buffers

Time of one step
    product       max(2MNK/rate (1 + w/min(M, N, K)), bytes/bandwidth), forward once, backward twice, recomputed once
    attention     2 T s ad/t causal FLOPs forward, 2.5 times that backward                     arXiv 2307.08691
    layer         (gpu^4 + launch^4)^(1/4), exposed collectives on top
    tensor        4 all-reduces of 2 T h bytes a layer, 6 with full recomputation              arXiv 1909.08053
    ring          (n-1)/n bytes/bandwidth; across nodes the bandwidth is that of the adapters whose GPUs take part
    pipeline      m (stage + p2p) + (p-1)/v (stage + p2p)                                      arXiv 2104.04473
    data          max(0, traffic - overlap x compute) once a step for ZeRO 0 and 1, per micro-batch for 2 and 3
    optimizer     30 bytes per parameter and shard across memory, and a fixed cost a step

Not modelled yet: unequal experts' load, host offload, hybrid sharding, the choice of an interleaved schedule, jitter.
"""
