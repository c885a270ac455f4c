"""One module a step; a step that has been released never changes."""
