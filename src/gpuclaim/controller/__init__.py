"""The controller: keeps the books in step with the apiserver, answers the webhook, and writes what was decided."""
