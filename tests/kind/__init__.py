"""Trimtab as its users run it: images, chart, gangs on the kubelets of kind. `hack/test --kind --all` runs them."""
