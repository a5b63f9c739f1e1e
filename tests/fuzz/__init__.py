"""A generator of networks: random legal ONNX graphs, run on every target against ONNX Runtime."""
