"""Networks on the CPU: from a graph to kernels chosen, fitted, measured and bound to one call.

compile   what `tilewright.compile` and `tilewright.load` do, for either target
fitting   schedules whose packed weights fit the memory that a network may take
tuning    `tune='measure'`: the best few of every distinct group, timed where they stand
kernels   distinct groups, and libraries built for them
chooser   a schedule for every group, by the model, in as many processes as there are cores
"""
