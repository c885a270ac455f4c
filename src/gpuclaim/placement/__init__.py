"""All that decides: the books, budgets, where an order goes, repacking, pods.

Pure: no I/O, no clock but an argument.
"""
