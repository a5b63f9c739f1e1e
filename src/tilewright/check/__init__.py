"""Is a compiled network right? One run on random data against a reference, before it is handed out.

check       `check_network`: the run, the verdict, and the search for what is wrong
data        random inputs; indices within what they look up
expected    the right results: ONNX Runtime, PyTorch, or our own program with no pass, in float64
difference  how far results are apart, and how far they may be
cause       which pass, which task, or whose memory plan is to blame
failure     the files that show a failure again
"""
