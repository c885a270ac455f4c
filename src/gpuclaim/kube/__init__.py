"""Everything that talks to an apiserver: credentials, the client, informers, the lease. It decides nothing."""
