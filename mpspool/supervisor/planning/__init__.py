"""What was asked for, and what this machine has -> which workers run where."""
