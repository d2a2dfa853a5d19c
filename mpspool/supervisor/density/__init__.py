"""What ran where and when, as a picture, a table and a file for scripts: `mpspool density`."""
