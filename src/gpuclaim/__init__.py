"""gpuclaim: order and hold GPUs for virtual machines on Kubernetes with KubeVirt."""

__version__ = "0.1.0.dev0"
