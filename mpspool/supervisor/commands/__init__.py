"""What the command line does with a pool that runs: asks it, changes it, looks at it."""
