"""Who is next, where, and with whom: the scheduler and all that it decides by."""
