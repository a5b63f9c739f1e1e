"""What Tilewright is measured, trained and reproduced with; the product runs without it.

peers      other libraries, each in a process of its own
compare    rounds of ours against theirs, rows and tables
collect    measured data sets of layers and fused groups
train      learned rankers, from such data
figures    figures and tables of the papers, again
simulate   caches and instruction sets that the host does not have
scripts    one question each: python -m tilewright_lab.scripts.NAME --help
cli        the verbs bench, demo, model and reproduce
"""
