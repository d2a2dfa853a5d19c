"""How fast the pool is, beside its peers, and a load generator that checks every answer."""
