"""Real training steps of a small GPT, measured, traced, held against the performance model: `trimtab profile gpt`.

`gpt` is the model and `training` its steps; `measure` times them, `trace` sums up what torch.profiler recorded;
`loader` measures what feeds them; `machine` says what the device is, `compare` what the performance model expects of
it; `run` puts all of it together. This package and the agents' training are what needs torch (the extra `train`).
"""
