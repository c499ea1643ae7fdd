"""One module or folder per public function, its answer beside it.

It answers what a user asks of a file. It takes a path, options and values for symbolic dimensions;
it gives a frozen dataclass with ``as_json``.

``analyze``
    in ``analysis``: a training graph; gives ``Analysis``, what every byte of the peak is
``profile``
    in ``profiling``: a training graph; gives ``Profile``, measured seconds per node
``rewrite``
    in ``rewrite/rewriting``: a training graph and a budget; gives ``Rewrite``, a graph that fits
``sweep``
    in ``sweep/sweeping``: training graphs and lists of sizes; gives ``Sweep``, a table of plans
``validate``
    in ``validate/validating``: a graph before and after; gives ``Validation``, peaks and equality
``diff``
    in ``diff/diffing``: two training graphs; gives ``Diff``, what lies between their peaks
``check``
    in ``check/checking``: training graphs and the peaks that are locked; gives ``CheckResult``
``capture``
    in ``capture/capturing``: a PyTorch training step; gives ``Capture``, a training graph
``grad``, ``gradients``
    in ``grad/differentiate``: a forward graph; gives ``TrainingGraph``, a training graph
``lower``
    in ``lower``: a file of onnxruntime-training; gives ``LoweredGraph``, one without them
"""
