"""One module or folder per public function, its answer beside it.

It answers what a user asks of a file. It takes a path, options and values for symbolic dimensions;
it gives a frozen dataclass with ``as_json``.

| function | stands in | takes | gives |
|---|---|---|---|
| ``analyze`` | ``analyze`` | a training graph | ``Analysis``: what every byte of the peak is |
| ``profile`` | ``profile`` | a training graph | ``Profile``: measured seconds per node |
| ``rewrite`` | ``rewrite/run`` | a training graph, a budget | ``Rewrite``: a graph that fits |
| ``sweep`` | ``sweep/run`` | training graphs, lists of sizes | ``Sweep``: a table of many plans |
| ``validate`` | ``validate/run`` | a graph before and after | ``Validation``: peaks and equality |
| ``grad``, ``gradients`` | ``grad/run`` | a forward graph | ``TrainingGraph``: a training graph |
"""
