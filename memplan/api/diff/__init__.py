"""``memplan diff``: what makes one model need more memory than another, tensor by tensor.

Takes two models. Gives :class:`memplan.api.diff.diff_result.Diff`: classes, and changes of single
tensors, that sum to the difference of the peaks. ``diffing`` reads both, ``peak_changes`` holds
the two peaks against each other, ``graph_changes`` the two graphs.
"""
