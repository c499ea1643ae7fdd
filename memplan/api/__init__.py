"""One module or folder per public function, its answer beside it.

It answers what a user asks of a file. It takes a path, options and values for symbolic dimensions;
it gives a frozen dataclass with ``as_json``.

| function | stands in | takes | gives |
|---|---|---|---|
| ``analyze`` | ``analysis`` | a training graph | ``Analysis``: what every byte of the peak is |
| ``profile`` | ``profiling`` | a training graph | ``Profile``: measured seconds per node |
| ``rewrite`` | ``rewrite/rewriting`` | a training graph, a budget | ``Rewrite``: a graph that fits |
| ``sweep`` | ``sweep/sweeping`` | training graphs, lists of sizes | ``Sweep``: a table of many plans |
| ``validate`` | ``validate/validating`` | a graph before and after | ``Validation``: peaks and equality |
| ``grad``, ``gradients`` | ``grad/differentiate`` | a forward graph | ``TrainingGraph``: a training graph |
"""
