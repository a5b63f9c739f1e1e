"""Networks on a GPU: `tw.compile(model, target='cuda')`.

choose    [Group, GpuMachine] -> [GpuChoice]        by the model, from the store or in processes
cost      [Group] -> seconds, roughly               what fusion decides by
place     [Program, Modules] -> [Placement]         one arena: values and scratch, by levels
order     [Spans] -> what each kernel waits for     the edges of a CUDA graph
code      [Kernels] -> [Programs]                   compiled in processes, kept on disk
bind      all of it -> [GpuNetwork]                 runtime/gpu_network.py
tune      [Program, GpuChoices] -> [GpuChoice]      the fastest of those that were measured
assemble  the stages in order
"""
