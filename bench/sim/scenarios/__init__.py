"""The scenarios, each a module with TITLE, tasks(), lines() and draw()."""
