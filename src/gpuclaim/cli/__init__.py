"""The commands, one module each; `main` puts them together and loads only the one that is asked for."""
