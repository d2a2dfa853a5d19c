"""The process that has imported TensorFlow and that workers are forked from (docs/adr/0010)."""
