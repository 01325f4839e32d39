"""Trimtab as its users run it: images, chart, and gangs on real kubelets, those of kind. Run by `hack/test --kind`."""
