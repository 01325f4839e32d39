"""Helm and kubeconform, with which the chart is rendered and checked, built from the Go module in this folder."""
