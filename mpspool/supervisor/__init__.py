"""What the user asked for, turned into processes: config, plan, supervisord programs, slots, reconcile."""
