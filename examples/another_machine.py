"""Plan for machines that one does not have: how does the best schedule change?"""

import tilewright as tw

op = tw.parse('mopt/R9')
for machine in ('i7-9700k', 'i9-10980xe'):
    plan = tw.optimize(op, machine=machine, measure=False)
    print(plan.explain(), end='\n\n')
