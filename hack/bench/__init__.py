"""How fast Trimtab is, as ratios from one run: `hack/bench/run`."""
