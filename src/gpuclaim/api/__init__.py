"""The API group gpu.cozystack.io/v1alpha1: its kinds, the shared model that every reader uses, the shapes of names.

Pure: no I/O and no clock.
"""
