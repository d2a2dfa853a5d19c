"""`mpspool doctor`: can this machine serve? `gather` looks, the others judge what it found and are pure."""
