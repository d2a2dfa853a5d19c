"""REST requests and answers: TensorFlow Serving's JSON, in and out."""
