"""The page for tenants and the hoster: server-rendered, live, with the visitor's own rights and none of its own."""
