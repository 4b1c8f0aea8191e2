"""Does this attention head look at where, or at what?

Measures, for every head and every RoPE frequency of a Transformer, whether it attends by position (where) or by symbol
(what). Every command of the command line is a function of this package.
"""

import lazy_loader

# The export list is the stub file __init__.pyi. A name is imported when it is first used, so that `import wherewhat`
# and `wherewhat --help` do not import torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
