"""Kubernetes on this machine: building it, starting it, ending it. For `gpuclaim up`, the tests and the benchmarks."""
