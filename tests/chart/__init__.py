"""The Helm chart: what it renders, what it refuses, and what API server and Helm make of it."""
